"""Every check of the contract goes red for a method that breaks what it promises, and says what to do."""

from __future__ import annotations

import copy
import itertools
import multiprocessing
import os
import signal
from contextlib import suppress

import pytest
import torch

from fedpm_lightning.methods import SCAFFOLD, FedAvg
from fedpm_lightning.round import Hooks
from fedpm_lightning.server.aggregator import MeanAggregator
from fedpm_lightning.testing import METHOD_CHECKS, MethodCase, check_callback, check_loader, check_ranks, contract
from fedpm_lightning.testing.ranks import on_ranks

NUMBERS = itertools.count()
KEPT: list[torch.Tensor] = []


class Changed(FedAvg):
    """FedAvg whose upload is changed on its way out."""

    def client_update(self, client):
        update = super().client_update(client)
        self.change(client, update)
        return update


class Drifting(Changed):
    def change(self, client, update):
        for p in update.params.values():
            p.add_(1e-3 * next(NUMBERS))


class Counting(Changed):
    """Remembers in the object, which no checkpoint holds."""

    rounds = 0

    def change(self, client, update):
        self.rounds += 1
        for p in update.params.values():
            p.mul_(1 + 1e-3 * (self.rounds // 4))


class Float16(Changed):
    def change(self, client, update):
        update.params = {name: p.half() for name, p in update.params.items()}


class Alias(Changed):
    def change(self, client, update):
        update.params = {name: p.detach() for name, p in client.model.params.items()}


class Hooked(Changed):
    def change(self, client, update):
        client.model.net.register_forward_hook(lambda *_: None)


class Chatty(Changed):
    def change(self, client, update):
        update.message["seed"] = 1


class OwnRate(FedAvg):
    def client_update(self, client):
        sgd = torch.optim.SGD(client.model.params.values(), lr=self.lr)
        return client.upload(client.train(sgd))


class Normed(FedAvg):
    """A norm over all leaves is one over all clients where they are stacked."""

    stackable = "any"

    def client_update(self, client):
        def scale(params):
            norm = torch.stack([p.grad.norm() for p in params.values()]).norm()
            for p in params.values():
                p.grad.div_(norm)

        sgd = torch.optim.SGD(client.model.params.values(), lr=self.lr * client.lr_factor)
        return client.upload(client.train(sgd, scale))


class Forgetful(FedAvg):
    """Defines a state that is empty."""

    def init_client(self, client):
        return {}


class LastOne(MeanAggregator):
    def add(self, update, weight):
        self.last = update.params

    def finish(self):
        return self.last


class Sum(MeanAggregator):
    def finish(self):
        weight = self.mean.total_weight
        return {name: p * weight / 30 for name, p in super().finish().items()}


class Unweighted(MeanAggregator):
    def add(self, update, weight):
        super().add(update, 1.0)


def aggregating(aggregator):
    return type("Own", (FedAvg,), {"aggregator": lambda self, broadcast, server: aggregator(broadcast.params)})


class Impatient(FedAvg):
    """Moves theta although nobody answered: it changes the network that `setup` showed it."""

    def setup(self, net):
        self.net = net
        return []

    def aggregator(self, broadcast, server):
        with torch.no_grad():
            for p in self.net.parameters():
                p.add_(0.1)
        return super().aggregator(broadcast, server)


BROKEN = {
    "learns": lambda: FedAvg(lr=1e-6),
    "takes_the_step_of_the_paper": lambda: FedAvg(lr=0.2),
    "follows_the_schedule": lambda: OwnRate(0.1),
    "is_deterministic": lambda: Drifting(0.1),
    "resumes_bit_for_bit": lambda: Counting(0.1),
    "keeps_what_it_declares": lambda: Forgetful(0.1),
    "survives_an_empty_round": lambda: Impatient(0.1),
    "ignores_the_order_of_clients": lambda: aggregating(LastOne)(0.1),
    "ignores_the_scale_of_weights": lambda: aggregating(Sum)(0.1),
    "weighs_clients": lambda: aggregating(Unweighted)(0.1),
    "counts_the_bytes_it_sends": lambda: Chatty(0.1),
    "keeps_the_dtype": lambda: Float16(0.1),
    "trains_stacked_clients_as_alone": lambda: Normed(0.1),
    "leaves_nothing_behind": lambda: Alias(0.1),
}


def case(make):
    return MethodCase(make, step=lambda theta, g: theta - 0.1 * g, upload=lambda d, _: d)


def test_every_check_has_a_method_that_breaks_it():
    assert list(BROKEN) == [check.__name__ for check in METHOD_CHECKS]


@pytest.mark.parametrize("check", METHOD_CHECKS, ids=lambda check: check.__name__)
def test_a_check_sees_what_it_is_for(check):
    with pytest.raises(AssertionError, match=r"."):
        check(case(BROKEN[check.__name__]))
    check(case(lambda: FedAvg(lr=0.1)))


def test_a_hook_left_behind_and_an_instance_shared_by_two_runs_are_seen():
    with pytest.raises(AssertionError, match="a hook is left on"):
        contract.leaves_nothing_behind(case(lambda: Hooked(0.1)))
    shared = Counting(0.1)
    with pytest.raises(AssertionError, match="two runs differ"):
        contract.is_deterministic(case(lambda: shared))


def test_a_method_on_two_ranks(tmp_path):
    check_ranks(case(lambda: SCAFFOLD(lr=0.1)), tmp_path)


def test_sums_that_do_not_reach_the_other_rank_are_seen(tmp_path):
    class Local(MeanAggregator):
        def tensors(self):
            return []

    with pytest.raises(AssertionError, match="theta on rank 0 of 2 is"):
        check_ranks(case(lambda: aggregating(Local)(0.1)), tmp_path)


def ranks_of_two_threads(folder):
    """A user's pytest has as many threads as cores, and they have worked before the ranks are forked; ours has one."""
    os.setsid()
    torch.set_num_threads(2)

    def work(rank):
        return torch.ones(512, 512).exp().sum()  # large enough for the pool

    work(0)
    on_ranks(2, folder, work)


def test_ranks_do_not_wait_for_threads_that_they_were_forked_without(tmp_path):
    process = multiprocessing.get_context("fork").Process(target=ranks_of_two_threads, args=(tmp_path,))
    process.start()
    process.join(60)
    try:
        assert process.exitcode == 0
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with the ranks, if they hang


class Meddles(Hooks):
    def on_client_end(self, round, update):
        for p in update.params.values():
            p.mul_(0.9)


class Records(Hooks):
    def __init__(self, value=1.0, state=None):
        self.value, self.state = value, state

    def on_round_end(self, round):
        round.record("mine/value", self.value)

    def state_dict(self):
        return {"state": self.state}


def test_callbacks():
    assert check_callback(Records)["mine/value"] == 1.0
    check_callback(Meddles, observes=False)
    with pytest.raises(AssertionError, match="moves theta"):
        check_callback(Meddles)
    with pytest.raises(AssertionError, match="mine/value"):
        check_callback(lambda: Records(float("nan")))
    with pytest.raises(AssertionError, match="state_dict holds"):
        check_callback(lambda: Records(state=copy))


def test_loaders():
    x, y = torch.arange(12.0).reshape(6, 2), torch.arange(6) % 2
    assert check_loader(lambda: (x, y, x[:2], y[:2])).num_classes == 2
    with pytest.raises(AssertionError, match="two calls return other data"):
        check_loader(lambda: (torch.rand(6, 2), y))
    with pytest.raises(ValueError, match="the loader: training inputs and targets of shapes"):
        check_loader(lambda: (x[:3], y))
