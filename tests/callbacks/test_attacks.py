"""Hostile clients do what they are said to do, and nobody else does."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from fedpm_lightning.callbacks import LabelFlip, SignFlip
from fedpm_lightning.callbacks.simulation.attacks import hostile_clients
from fedpm_lightning.data import FederatedData
from fedpm_lightning.methods import PSGD, FedAvg
from fedpm_lightning.round import Round
from fedpm_lightning.trainer.module import FederatedModule
from fedpm_lightning.types import ClientUpdate, Cohort


def round_of(method=None, clients=()):
    """A round of ten clients, its module, and what was said."""
    module = FederatedModule(nn.Linear(1, 2), method or FedAvg())
    said: list[str] = []
    module.federation.print = said.append
    return module, Round(module.federation, Cohort(0, [*clients])), said


def started(attack, module, num_clients=10):
    trainer = SimpleNamespace(datamodule=SimpleNamespace(num_clients=num_clients, num_classes=10))
    attack.on_train_start(trainer, module)


@pytest.mark.parametrize(("method", "sent"), [(FedAvg(), -3.0), (PSGD(), -6.0)])
def test_sign_flip_turns_the_update_around_its_start(method, sent):
    attack, (module, round, said) = SignFlip(clients=[1], scale=2.0), round_of(method)
    round.broadcast.params = {"w": torch.ones(2)}
    started(attack, module)
    updates = [ClientUpdate(k, 1, 1, {"w": torch.full((2,), 3.0)}) for k in (0, 1)]
    for update in updates:
        attack.on_client_end(round, update)
    assert updates[0].params["w"].tolist() == [3.0, 3.0] and updates[1].params["w"].tolist() == [sent] * 2
    assert said == ["SignFlip: hostile clients [1] of 10"]


def test_label_flip_changes_labels_of_hostile_clients_only():
    data, attack = FederatedData(num_clients=4), LabelFlip(clients=[2])
    module, round, _ = round_of(clients=[data.client(k) for k in range(4)])
    started(attack, module, 4)
    attack.on_round_start(round)
    for k, client in enumerate(round.cohort.clients):
        (x, y), (x_0, y_0) = next(iter(client.everything())), next(iter(data.client(k).everything()))
        assert torch.equal(x, x_0) and torch.equal(y, 9 - y_0 if k == 2 else y_0)


def test_who_is_hostile_is_a_function_of_the_seed():
    drawn = [hostile_clients(None, 0.3, seed, 10) for seed in range(20)]
    assert all(len(ids) == 3 and ids <= set(range(10)) for ids in drawn) and len(set(drawn)) > 10
    assert hostile_clients(None, 0.3, 5, 10) == drawn[5]


@pytest.mark.parametrize(
    "make",
    [
        lambda: SignFlip(),
        lambda: SignFlip(0.3, clients=[1]),
        lambda: SignFlip(1.3),
        lambda: SignFlip(0.3, scale=0.0),
        lambda: LabelFlip(fraction=-1.0),
        lambda: started(LabelFlip(clients=[10]), round_of()[0]),
    ],
)
def test_values_out_of_range_are_refused(make):
    with pytest.raises(ValueError, match=r"exactly one|must be|outside 0\.\.9"):
        make()
