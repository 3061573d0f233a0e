"""Personal models: who gets which test samples, what is measured, and that the run stays as it is."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch

from fedpm_lightning import FederatedData
from fedpm_lightning.callbacks import PersonalAccuracy
from fedpm_lightning.callbacks.metrics.personal_accuracy import shares
from fedpm_lightning.models import MLP
from fedpm_lightning.types import LocalWork
from resume_parts import last

FEDAVG = ("--config", "configs/method/fedavg.yaml", "--model.local_epochs", "1", "--model.net.hidden", "[16]")


def test_every_sample_has_one_owner_and_a_share_has_its_clients_mix():
    g = torch.Generator().manual_seed(0)
    targets = torch.randint(0, 4, (1000,), generator=g)
    histogram = torch.tensor([[10, 0, 5, 0], [30, 7, 0, 0], [0, 7, 15, 0], [0, 0, 0, 0]])
    dealt = shares(targets, histogram, seed=0)
    together = torch.cat(dealt)
    assert len(together.unique()) == len(together) == int((targets < 3).sum()), "class 3 is nobody's"
    for k, rows in enumerate(dealt):
        for c in range(3):
            n, owned = int((targets == c).sum()), histogram[:, c]
            assert abs(int((targets[rows] == c).sum()) - n * owned[k] / owned.sum()) <= 1
    assert all(torch.equal(a, b) for a, b in zip(dealt, shares(targets, histogram, 0), strict=True))
    assert not torch.equal(dealt[0], shares(targets, histogram, 1)[0])


def test_it_is_the_accuracy_of_models_that_are_trained_by_hand_and_changes_nothing(quickstart):
    """Plain torch from the run's own theta, on the same batches; the run is that of one without, bit for bit."""
    part = [{"class_path": "fedpm_lightning.callbacks.PersonalAccuracy", "init_args": {"every": 2, "lr": 0.1}}]
    words = (*FEDAVG, "--rounds", "2", "--data.participation", "0.5")
    plain = quickstart(*words, folder="plain")
    before = random.getstate(), np.random.get_state()[1].tolist()
    run = quickstart(*words, "--trainer.callbacks", json.dumps(part), folder="personal")
    assert before == (random.getstate(), np.random.get_state()[1].tolist()), "global generators stand where they stood"
    assert plain.code == run.code == 0
    theta = last(run.folder)["state_dict"]
    assert all(torch.equal(theta[name], p) for name, p in last(plain.folder)["state_dict"].items())
    assert not run.rows[0].get("personal_acc/mean"), "only every second round"
    data = FederatedData(num_clients=10, participation=0.5)
    loader, found, before = data.on_device.loaders["test"], [], []
    dealt = shares(loader.y, torch.tensor(data.partition_report.histogram), 0)
    images = loader.normalise(loader.x)
    for k, rows in enumerate(dealt):
        net = MLP(64, [16], 10)
        net.load_state_dict({name.removeprefix("net."): p for name, p in theta.items()})
        before.append(float((net(images[rows]).argmax(1) == loader.y[rows]).double().mean()))
        sgd = torch.optim.SGD(net.parameters(), lr=0.1)
        for x, y in data.client(k).batches(1, LocalWork(epochs=1)):
            sgd.zero_grad()
            torch.nn.functional.cross_entropy(net(x), y).backward()
            sgd.step()
        found.append(float((net(images[rows]).argmax(1) == loader.y[rows]).double().mean()))
    row, accuracies = run.rows[1], torch.tensor(found)
    assert float(row["personal_acc/mean"]) == pytest.approx(float(accuracies.mean()), abs=1e-6)
    assert float(row["personal_acc/std"]) == pytest.approx(float(accuracies.std(correction=0)), abs=1e-6)
    assert float(row["personal_acc/worst_tenth"]) == float(row["personal_acc/min"]) == pytest.approx(min(found))
    gain = float(accuracies.mean()) - sum(before) / len(before)
    assert float(row["personal_acc/gain"]) == pytest.approx(gain, abs=1e-6) and gain > 0.1


@pytest.mark.parametrize("bad", [{"lr": 0}, {"every": 0}, {"split": "train"}, {"epochs": None}, {"steps": 3}])
def test_values_out_of_range_are_refused(bad):
    with pytest.raises(ValueError, match=r"must be|exactly one"):
        PersonalAccuracy(**bad)
