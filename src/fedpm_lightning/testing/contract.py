"""The contract that every method keeps, this package's and yours: one function per promise.

@pytest.mark.parametrize("check", METHOD_CHECKS, ids=lambda check: check.__name__)
def test_the_contract(check):
check(MethodCase(lambda: MyMethod(lr=0.1)))
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from fedpm_lightning.client.executor import Sequential, Vectorized
from fedpm_lightning.nested import wire_bytes
from fedpm_lightning.round import Hooks, Round
from fedpm_lightning.schedules import Schedule
from fedpm_lightning.testing.case import FEATURES, L2, MethodCase, advance, largest_difference, pooled_loss
from fedpm_lightning.testing.rounds import Rounds
from fedpm_lightning.testing.stacks import ExecutorRounds, clients_of, same_update
from fedpm_lightning.types import ClientUpdate, LocalWork

PARTIAL = ([0, 1, 3], [2], [0, 3], [1, 2])
"""Cohorts in which some clients come back and some come late."""


def require(holds: bool, otherwise: str) -> None:
    """Raise AssertionError with `otherwise` unless it holds: pytest explains no asserts of an installed package."""
    if not holds:
        raise AssertionError(otherwise)


def learns(case: MethodCase) -> None:
    """Five rounds lower the mean objective by a tenth at least."""
    run = case.start()
    before = pooled_loss(run)
    after = pooled_loss(advance(run, 5))
    require(after < 0.9 * before, f"five rounds took the objective from {before:.4g} to {after:.4g}: not below 90 %")


class _Half(Schedule):
    def factor(self, round: int, rounds: int) -> float:
        return 0.5


def follows_the_schedule(case: MethodCase) -> None:
    """A schedule of one half trains as half the learning rate does: the method multiplies by client.lr_factor."""
    halved = case.make()
    case.halve(halved)
    scheduled, own, plain = case.start(schedule=_Half()), case.start(halved), case.start()
    for run in (scheduled, own, plain):
        advance(run, 2)
    gap, effect = (largest_difference(run.theta, other.theta) for run, other in ((scheduled, own), (own, plain)))
    require(effect > 1e-6, "half the learning rate changes nothing: say in the case how it is halved")
    require(gap < 1e-13, f"a schedule of 0.5 and half the learning rate differ by {gap:.2g}: use client.lr_factor")


def is_deterministic(case: MethodCase) -> None:
    """Two runs have the same bits: random numbers come from torch's generators or fedpm_lightning.rng."""
    gap = largest_difference(*(advance(case.start(), 3).theta for _ in range(2)))
    require(gap == 0, f"two runs differ by {gap:.2g}: draw from torch's generators, which the frame seeds")


def ignores_the_order_of_clients(case: MethodCase) -> None:
    """What a client sends, and what the server makes of it, does not depend on who came before."""
    orders = ([[0, 1, 2, 3]] * 2, [[3, 1, 2, 0]] * 2)
    gap = largest_difference(*(advance(case.start(), order).theta for order in orders))
    require(gap < 1e-12, f"another order of the clients changes theta by {gap:.2g}")


def ignores_the_scale_of_weights(case: MethodCase) -> None:
    """Clients of one size weigh n under `size` and 1 under `uniform`: the same shares, so the same theta."""
    if not {"size", "uniform"} <= set(case.make().weightings):
        return
    by_size, uniform = (advance(case.start(weighting=name), 2).theta for name in ("size", "uniform"))
    gap = largest_difference(by_size, uniform)
    require(gap < 1e-12, f"weights 30 and weights 1 differ by {gap:.2g}: the aggregator must divide by their sum")


def weighs_clients(case: MethodCase) -> None:
    """Under `size` a client of twice the samples counts twice: theta differs from that of equal weights."""
    if not {"size", "uniform"} <= set(case.make().weightings):
        return
    first, *others = case.clients()
    clients = [replace(first, x=first.x[:10], y=first.y[:10]), *others]
    by_size, uniform = (advance(case.start(clients=clients, weighting=w), 1).theta for w in ("size", "uniform"))
    gap = largest_difference(by_size, uniform)
    require(gap > 1e-9, "clients of other sizes count the same under `size`: the aggregator must use the weight")


def resumes_bit_for_bit(case: MethodCase) -> None:
    """Two rounds, a checkpoint and two more rounds are four rounds: what is kept is in init_server and init_client."""
    straight, first, second = advance(case.start(), PARTIAL), advance(case.start(), PARTIAL[:2]), case.start()
    saved = {
        "theta": first.theta,
        "federated": first.federation.state_dict(1),
        "optimizer": first.optimizer.state_dict(),
    }
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    second.theta, second.round = saved["theta"], first.round
    second.federation.load_state_dict(saved["federated"])
    second.optimizer.load_state_dict(saved["optimizer"])
    gap = largest_difference(straight.theta, advance(second, PARTIAL[2:]).theta)
    require(gap == 0, f"a resume after two rounds ends {gap:.2g} away: keep nothing in `self` between rounds")


def keeps_what_it_declares(case: MethodCase) -> None:
    """Clients have a state exactly where `init_client` is defined."""
    run = advance(case.start(), 2)
    kept = any(run.states.values())
    require(kept == run.method.stateful, f"init_client is defined: {run.method.stateful}; states are kept: {kept}")


def counts_the_bytes_it_sends(case: MethodCase) -> None:
    """An upload's bytes are those of its parts, and of so many numbers as the case says."""
    run = advance(case.start(), 1)
    d = sum(p.numel() for p in run.theta.values())
    for update in run.updates:
        parts = sum(wire_bytes(part) for part in (update.params, update.message, update.buffers))
        require(update.wire_bytes == parts, f"an upload says {update.wire_bytes} bytes, its parts have {parts}")
        numbers = None if case.upload is None else 8 * case.upload(d, FEATURES + 1)
        require(numbers in (None, parts), f"an upload has {parts} bytes, the case expects {numbers}")


def keeps_the_dtype(case: MethodCase) -> None:
    """Theta and uploads stay in the precision of the run, without a gradient's history."""
    for dtype in (torch.float32, torch.float64):
        run = advance(case.start(dtype=dtype), 2)
        sent = [] if case.problem == "logistic" else [p for update in run.updates for p in update.params.values()]
        found = {p.dtype for p in (*run.theta.values(), *sent)}
        require(found == {dtype}, f"a run in {dtype} has parameters or uploads in {found - {dtype}}")
        require(not any(p.requires_grad for p in sent), "an upload requires a gradient: detach it")


def trains_stacked_clients_as_alone(case: MethodCase) -> None:
    """Both executors give the same updates, where the method declares that clients can be stacked."""
    if case.make().stackable == "no":
        return
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Linear(FEATURES, 3)
    clients = clients_of(shape=(FEATURES,))
    executors = (Sequential(), Vectorized(4, case.make().stackable))
    alone, together = (ExecutorRounds(case.make(), net, executor, clients).step() for executor in executors)
    wrong = [client for client, update in alone.items() if not same_update(update, together[client])]
    require(not wrong, f"clients {wrong} send something else when trained at once: declare stackable 'no' or 'alike'")


def leaves_nothing_behind(case: MethodCase) -> None:
    """No hook, no gradient, and no tensor shared between the server, the clients' network and what is sent."""
    run = advance(case.start(), 2)
    nets = (run.net, run.model.net)
    require(all(p.grad is None for net in nets for p in net.parameters()), "a gradient is left: call zero_grad")
    modules = [module for net in nets for module in net.modules()]
    hooked = [m for m in modules if m._forward_hooks or m._forward_pre_hooks]  # pyright: ignore[reportPrivateUsage]
    require(not hooked, f"a hook is left on {hooked[:1]}: remove it")
    server, scratch = ({p.data_ptr() for p in net.parameters()} for net in nets)
    sent = {tensor.data_ptr() for update in run.updates for tensor in update.params.values()}
    require(not (server & scratch or sent & server or sent & scratch), "an upload shares memory: send a copy")


class _LoseAll(Hooks):
    """Loses every upload of round `at`."""

    def __init__(self, at: int) -> None:
        self.at = at

    def on_client_end(self, round: Round, update: ClientUpdate) -> None:
        update.dropped = round.number == self.at


def survives_an_empty_round(case: MethodCase) -> None:
    """A round from which no client returns changes neither theta nor a client's state, and the next one works."""
    run = advance(case.start(hooks=[_LoseAll(1)]), 1)
    theta, changed = run.theta, dict(run.store.changed)
    advance(run, 1)
    gap = largest_difference(theta, run.theta)
    require(gap == 0, f"a round without an update moved theta by {gap:.2g}")
    require(changed == run.store.changed, "a client whose upload was lost kept its new state")
    moved = largest_difference(theta, advance(run, 1).theta)
    require(0 < moved < float("inf"), f"the round after an empty one moved theta by {moved}")


def takes_the_step_of_the_paper(case: MethodCase) -> None:
    """One local step is the case's `step` of the gradient by autograd, to rounding."""
    if case.step is None:
        return
    run: Rounds = case.start(work=LocalWork(steps=1))
    theta = run.theta
    run.step()
    for update, data in zip(run.updates, run.clients, strict=True):
        x, y = next(data.batches(0, run.federation.work))
        own = {name: p.clone().requires_grad_() for name, p in theta.items()}
        net = run.federation.net
        loss = run.federation.objective.loss(torch.func.functional_call(net, own, (x,)), y)
        loss = loss + L2 / 2 * sum(p.square().sum() for p in own.values())
        gradients = torch.autograd.grad(loss, list(own.values()))
        expected = {name: case.step(theta[name], g) for name, g in zip(own, gradients, strict=True)}
        gap = largest_difference(expected, update.params)
        require(gap < 1e-12, f"client {data.client}: one step ends {gap:.2g} from the one that the case says")


METHOD_CHECKS: tuple[Callable[[MethodCase], None], ...] = (
    learns,
    takes_the_step_of_the_paper,
    follows_the_schedule,
    is_deterministic,
    resumes_bit_for_bit,
    keeps_what_it_declares,
    survives_an_empty_round,
    ignores_the_order_of_clients,
    ignores_the_scale_of_weights,
    weighs_clients,
    counts_the_bytes_it_sends,
    keeps_the_dtype,
    trains_stacked_clients_as_alone,
    leaves_nothing_behind,
)
"""The checks of a method, each a function of a MethodCase that raises AssertionError."""
