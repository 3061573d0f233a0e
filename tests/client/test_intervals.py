"""How rarely factors are observed and inverted changes nothing of what is computed together or one after another."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedpm_lightning.client.executor import Sequential, Vectorized
from fedpm_lightning.methods import FedPM
from fedpm_lightning.preconditioners import Foof
from fedpm_lightning.rng import sample_cohort
from fedpm_lightning.testing.stacks import UNEQUAL, ExecutorRounds, clients_of

ROUNDS = 3


def theta_after(executor, foof):
    """theta after three rounds of half of the clients, whose batches are all of different sizes."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    rounds = ExecutorRounds(FedPM(0.1, preconditioner=foof, mix_damping=1.0), net, executor, clients_of(UNEQUAL))
    for number in range(ROUNDS):
        super(ExecutorRounds, rounds).step(sample_cohort(1, number, len(UNEQUAL), (len(UNEQUAL) + 1) // 2))
    return rounds.theta


QUICK = {(1, 1), (2, 8), (10, 10)}
PAIRS = [
    pytest.param(cov, inv, marks=[] if (cov, inv) in QUICK else pytest.mark.slow)
    for cov in (1, 2, 4, 8, 10)
    for inv in (1, 8, 10)
]


@pytest.mark.parametrize(("cov_every", "inv_every"), PAIRS)
def test_vectorized_is_sequential_for_all_intervals_at_half_participation(cov_every, inv_every):
    foof = Foof(damping=1.0, cov_every=cov_every, inv_every=inv_every)
    alone, together = (theta_after(executor, foof) for executor in (Sequential(), Vectorized(3)))
    for name, value in alone.items():
        assert torch.allclose(value, together[name], rtol=1e-10, atol=1e-10), name
