"""A client's steps don't wait for the device: what would bring a number to the host is counted on the CPU."""

from __future__ import annotations

import sys
from collections import Counter

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from fedpm_lightning.client import client, stacked_client
from fedpm_lightning.client.executor import Sequential, Vectorized
from fedpm_lightning.methods import SCAFFOLD, FedAvg, FedPM, FedProx, LocalNewton
from fedpm_lightning.preconditioners import Foof
from fedpm_lightning.testing.rounds import Rounds
from fedpm_lightning.testing.stacks import clients_of
from fedpm_lightning.types import LocalWork

WAITS = (
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "_unique",
    "unique_",
    "is_nonzero",
    "equal.",
    "_linalg_check",
)
SIZES = (30, 16, 9)
NOT_AT_A_CLIENT = {"_add_diagonal", "aggregate", "counts", "update_buffers"}  # on a CPU; the server, once a round


def asker() -> str:
    """The function of the package that is running."""
    frame = sys._getframe(1)
    while frame is not None and not frame.f_globals.get("__name__", "").startswith("fedpm_lightning."):
        frame = frame.f_back
    return "?" if frame is None else frame.f_code.co_name


class Waits(TorchDispatchMode):
    """Counts the operations for whose result the host would wait on a GPU, by who asks."""

    def __init__(self):
        super().__init__()
        self.by = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = str(function).removeprefix("aten.")
        masks = args[1] if name.startswith("index") and len(args) > 1 and isinstance(args[1], list | tuple) else ()
        if name.startswith(WAITS) or any(isinstance(one, torch.Tensor) and one.dtype == torch.bool for one in masks):
            self.by[asker()] += 1
        return function(*args, **(kwargs or {}))


@pytest.fixture
def waits_of(monkeypatch):
    """`waits_of(method, steps, executor)`: what the clients of one round wait for in their local loops."""

    def count(method, steps, executor):
        mode, loop, tolist = Waits(), client.local_loop, torch.Tensor.tolist

        def watched(*args):
            with mode:
                return loop(*args)

        def counted(tensor):  # it passes every dispatcher by
            mode.by[asker()] += 1
            return tolist(tensor)

        net = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).double()
        with monkeypatch.context() as patch:
            for module in (client, stacked_client):
                patch.setattr(module, "local_loop", watched)
            run = Rounds(method, net, clients_of(SIZES), LocalWork(steps=steps), executor=executor)
            patch.setattr(torch.Tensor, "tolist", counted)
            run.step()
        return {who: times for who, times in mode.by.items() if who not in NOT_AT_A_CLIENT}

    return count


METHODS = [FedAvg(0.1, momentum=0.9), FedProx(0.1), SCAFFOLD(0.1)]


@pytest.mark.parametrize("method", METHODS, ids=lambda one: type(one).__name__)
def test_first_order_clients_wait_once_however_long_they_train(method, waits_of):
    for steps in (2, 11):
        assert waits_of(method, steps, Sequential()) == {"_mean": len(SIZES)}, "the loss, once a client"
        stacked = {"_mean": 1, "finish": 1, "_compare": 1}  # the last one once a run
        assert waits_of(method, steps, Vectorized(3)) == stacked, "the losses, once a stack"


@pytest.mark.parametrize("kind", [FedPM, LocalNewton])
@pytest.mark.parametrize("executor", [Sequential(), Vectorized(3)], ids=str)
def test_second_order_clients_wait_for_their_factorisations_besides(kind, executor, waits_of):
    alone = executor.name == "sequential"
    turns, layers = len(SIZES) if alone else 1, 2
    for steps in (4, 8, 12):
        found = waits_of(kind(0.1, preconditioner=Foof(1.0, ema=0.9, cov_every=4, inv_every=4)), steps, executor)
        assert found.pop("explains", 0) <= turns * layers, "whether errors explain G, once a layer"
        ends = {"_mean": turns} if alone else {"_mean": 1, "finish": 1, "_compare": 1}
        assert found == {**ends, "damped_cholesky": turns * layers * steps // 4}
