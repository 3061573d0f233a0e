"""Rounds on two ranks are those of one: figures, states, buffers; with ordered sums bit for bit."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from convex import fedpm, logistic_clients
from fedpm_lightning.callbacks import ClientDrift, Communication
from fedpm_lightning.compression import Message
from fedpm_lightning.methods import SCAFFOLD, FedAvg, FedNL, FedPM
from fedpm_lightning.models import Logistic
from fedpm_lightning.preconditioners import Foof, Hessian
from fedpm_lightning.testing.ranks import on_ranks
from fedpm_lightning.testing.rounds import Rounds
from fedpm_lightning.testing.stacks import clients_of
from fedpm_lightning.types import LocalWork

SIZES = (30, 3, 8, 15, 22)
COHORTS = ([0, 1, 3], [1, 2, 4], [0, 2, 3, 4])


def network(norm=False):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5) if norm else nn.Tanh(), nn.Linear(5, 3))


def start(method, net=None, **options):
    clients = clients_of(SIZES, batch_size=7)
    hooks = [Communication(), ClientDrift()]
    return Rounds(method, (net or network()).double(), clients, LocalWork(epochs=1), hooks=hooks, **options)


CORRECTED = partial(FedPM, 0.1, preconditioner=Foof(damping=1.0), correction="gradient", mix_damping=0.5)
CASES = {
    "local buffers": lambda: start(FedAvg(0.1), network(norm=True), buffer_policy="local", weighting="size"),
    "mixed buffers": lambda: start(FedAvg(0.1), network(norm=True), weighting="size"),
    "SCAFFOLD": lambda: start(SCAFFOLD(0.1)),
    "FedPM, first pass": lambda: start(CORRECTED(), weighting="size"),
    "FedPM, message": lambda: start(
        FedPM(0.1, preconditioner=Foof(damping=1.0, align=20.0)), weighting="size",
        message=Message("int8", error_feedback=True, factors="int8", factors_every=2, broadcast_factors="int8"),
    ),
    "FedNL": lambda: Rounds(
        FedNL(mu=0.01), Logistic(6, 1, bias=False, dtype="float64"), logistic_clients(5), l2=0.01,
        weighting="size", hooks=[Communication(), ClientDrift()],
    ),
    "FedPM, Hessian": lambda: Rounds(
        fedpm(preconditioner=Hessian(damping=0.1, damping_mode="absolute")),
        Logistic(6, 1, bias=False, dtype="float64"), logistic_clients(5), l2=0.01,
        weighting="size", hooks=[Communication(), ClientDrift()],
    ),
}  # fmt: skip
# In float64, where the order of a sum decides its last bits: rounding to float32 would hide it.
ORDERED = {
    "SCAFFOLD": lambda: start(SCAFFOLD(0.1), reduce="ordered"),
    "FedPM, first pass": lambda: start(CORRECTED(), weighting="size", reduce="ordered"),
    "mixed buffers": lambda: start(FedAvg(0.1), network(norm=True), weighting="size", reduce="ordered"),
}


def ran(make):
    """Three rounds of different cohorts: theta and buffers, the rank's own states, the server's, and every row."""
    run, rows = make(), []
    for cohort in COHORTS:
        run.federation.row.clear()
        run.step(cohort)
        rows.append(dict(run.federation.row))
    whole = {**run.theta, **{k: b.clone() for k, b in run.net.named_buffers()}}
    return {"theta": whole, "states": run.states, "server": run.server, "rows": rows}


def of(ranks, name):
    return [everything[name] for everything in ranks]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """All cases on two ranks, in one pair of processes."""
    every = {**CASES, **{f"ordered {name}": make for name, make in ORDERED.items()}}
    return on_ranks(2, tmp_path_factory.mktemp("ranks"), lambda rank: {name: ran(make) for name, make in every.items()})


def close(a, b, tolerance):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(close(a[key], b[key], tolerance) for key in a)
    if isinstance(a, torch.Tensor):
        return torch.allclose(a.double(), b.double(), rtol=tolerance, atol=tolerance)
    if isinstance(a, str | list):
        return a == b
    return a == pytest.approx(b, rel=tolerance, abs=tolerance)


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_give_what_one_gives(two, name):
    one, ranks = ran(CASES[name]), of(two, name)
    for rank in ranks:
        for part in ("theta", "server"):
            assert close(one[part], rank[part], 1e-10), part
        for alone, row in zip(one["rows"], rank["rows"], strict=True):
            assert {"drift/direction_mean", "drift/norm_mean"} & row.keys() and close(alone, row, 1e-8)
    homes = [set(rank["states"]) for rank in ranks]
    assert not homes[0] & homes[1], "a client's state lives on one rank"
    assert close(one["states"], ranks[0]["states"] | ranks[1]["states"], 1e-10)
    if name in {"local buffers", "SCAFFOLD", "FedNL"}:
        assert homes[0] == {0, 2, 4} and homes[1] == {1, 3}


@pytest.mark.parametrize("name", ORDERED)
def test_ordered_sums_have_the_bits_of_one_process(two, name):
    one = ran(ORDERED[name])
    for rank in of(two, f"ordered {name}"):
        assert all(torch.equal(one["theta"][key], rank["theta"][key]) for key in one["theta"])


def test_sums_of_several_ranks_are_not_those_bits(two):
    """Or the test above says nothing: plain sums of ranks differ from one process in some bit of float64."""
    names = ("SCAFFOLD", "FedPM, first pass", "mixed buffers")
    pairs = [(ran(CASES[name])["theta"], of(two, name)[0]["theta"]) for name in names]
    assert any(not torch.equal(one[key], other[key]) for one, other in pairs for key in one)
