"""Stacked clients whose updates nobody looks at: the same answers as otherwise, and a bad one is still found."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedpm_lightning.client.executor import Vectorized
from fedpm_lightning.errors import BadClientError
from fedpm_lightning.methods import SCAFFOLD, FedPM
from fedpm_lightning.preconditioners import Foof
from fedpm_lightning.rng import derive_seed
from fedpm_lightning.testing.rounds import Rounds
from fedpm_lightning.testing.stacks import clients_of, same_update

SIZES = (30, 16, 9)


def answers(method, clients, watched, **options):
    torch.manual_seed(0)
    rounds = Rounds(method, nn.Linear(6, 3).double(), clients, **options)
    local = rounds.local()
    assert local.on_end is not None, "the harness looks at every update"
    local = local if watched else replace(local, on_end=None)
    return {update.client: (update, state) for update, state in Vectorized(3).train(local, clients)}


@pytest.mark.parametrize("method", [SCAFFOLD(0.1), FedPM(0.1, preconditioner=Foof(1.0))], ids=["SCAFFOLD", "FedPM"])
def test_nobody_who_looks_changes_nothing(method):
    seen, unseen = (answers(method, clients_of(SIZES), watched) for watched in (True, False))
    assert seen.keys() == unseen.keys() == {0, 1, 2}
    assert all(same_update(seen[k][0], unseen[k][0]) for k in seen)


def test_a_bad_client_of_an_unwatched_stack_is_named_or_dropped():
    clients = clients_of(SIZES)
    clients[1].pool.x[clients[1].rows[0]] = float("nan")
    with pytest.raises(BadClientError, match="round 1, client 1"):
        answers(SCAFFOLD(0.1), clients, watched=False)
    assert answers(SCAFFOLD(0.1), clients, watched=False, on_bad_client="drop").keys() == {0, 2}


def test_a_watched_client_draws_its_own_random_numbers():
    drawn = []

    def look(update):
        drawn.append((update.client, float(torch.rand(()))))

    clients = clients_of(SIZES)
    local = replace(Rounds(SCAFFOLD(0.1), nn.Linear(6, 3).double(), clients).local(), on_end=look)
    list(Vectorized(3).train(local, clients))
    for client, number in drawn:
        generator = torch.Generator().manual_seed(derive_seed(local.seed, "client", 0, client))
        assert number == float(torch.rand((), generator=generator))
