"""Messages in rounds: what the server adds up is what was sent, whoever trains the clients and wherever."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from fedpm_lightning.callbacks import Communication
from fedpm_lightning.client.executor import Sequential, Vectorized
from fedpm_lightning.client.local_round import MESSAGE
from fedpm_lightning.compression import Message
from fedpm_lightning.compression.message import FACTORS, RESIDUAL
from fedpm_lightning.methods import SCAFFOLD, FedAvg, FedDyn, FedNew, FedNL, FedNS, FedPM, LocalNewton
from fedpm_lightning.methods.psgd import PSGD
from fedpm_lightning.preconditioners import Diagonal, Foof
from fedpm_lightning.round import Federation, Hooks
from fedpm_lightning.server.mixing import preconditioned_mix, weighted_mean
from fedpm_lightning.server.preconditioned import PRECONDITIONERS, SHARED_FACTORS
from fedpm_lightning.testing.problems import SumOfSquares, regression_clients
from fedpm_lightning.testing.rounds import Rounds
from fedpm_lightning.testing.stacks import ExecutorRounds, clients_of, close
from fedpm_lightning.types import ClientUpdate, LocalWork

DENSE = {"cov_every": 1, "inv_every": 1, "max_rows": None, "damping": 1.0}
ALL = {
    "bfloat16": {"parameters": "bfloat16", "factors": "bfloat16", "broadcast_factors": "bfloat16"},
    "int8": {"parameters": "int8", "error_feedback": True, "factors": "int8", "broadcast_factors": "int8"},
    "topk": {"parameters": "topk", "share": 0.3, "error_feedback": True, "factors_every": 2},
    "qsgd": {"parameters": "qsgd", "bucket": 8, "factors": "low_rank", "factor_share": 0.5, "factors_every": 2},
}


def aligned(**more):
    return FedPM(0.1, mix_damping=0.5, preconditioner=Foof(align=20.0, **{**DENSE, **more}))


def rounds(method, message=None, hooks=(), **options):
    """Linear regression with a hidden layer in float64, on clients of 20, 23 and 26 samples."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    work = LocalWork(steps=3)
    return Rounds(method, net, regression_clients(), work, SumOfSquares(), hooks=hooks, message=message, **options)


class Sees(Hooks):
    """Keeps what clients had in mind to send, and may drop one of them."""

    def __init__(self, drop: tuple[int, int] = (-1, -1)) -> None:
        self.meant: dict[tuple[int, int], dict] = {}
        self.drop = drop

    def on_client_end(self, round, update: ClientUpdate) -> None:
        assert not update.packed, "a message is packed after every hook has seen the update"
        theta = round.broadcast.params
        self.meant[round.number, update.client] = {n: p - theta[n] for n, p in update.params.items()}
        update.dropped = (round.number, update.client) == self.drop


def test_a_message_of_full_precision_changes_nothing():
    a, b = rounds(aligned()), rounds(aligned(), Message())
    for _ in range(3):
        a.step(), b.step()
    assert all(torch.equal(x, b.theta[name]) for name, x in a.theta.items())
    assert [u.wire_bytes for u in a.updates] == [u.wire_bytes for u in b.updates] and b.states == {}


@pytest.mark.parametrize("name", ALL)
def test_the_server_adds_up_what_was_sent_and_nothing_else(name):
    run = rounds(aligned(), Message(**ALL[name]), weighting="size")
    for _ in range(3):
        W = run.theta
        run.step()
    n = [float(u.num_samples) for u in run.updates]
    for update in run.updates:
        forms = update.packed["params"]
        if "all" in forms:
            parts = forms["all"].decode().split([p.numel() for p in W.values()])
            sent = {k: part.view(W[k].shape) for k, part in zip(W, parts, strict=True)}
        else:
            sent = {k: forms[k].decode() for k in W}
        assert all(torch.equal(update.params[k], W[k] + sent[k].double()) for k in W)
    for block in run.method.blocks:
        clients = [block.matrix(u.params) for u in run.updates]
        P = [u.message[PRECONDITIONERS][block.name] for u in run.updates]
        expected = preconditioned_mix(block.matrix(W), clients, P, n)
        torch.testing.assert_close(block.matrix(run.theta), expected, rtol=1e-10, atol=1e-12)


def test_bytes_are_those_of_the_forms_up_and_down():
    hook = Communication()
    run = rounds(aligned(), Message(**ALL["int8"]), [hook])
    run.step(), run.step()
    weights = sum(p.numel() for p in run.theta.values())
    rows, below, scales = 4 + 1 + 2 + 1, 15 + 10, 8 * (6 + 5)
    factors = below + scales + 2 * 4 + 2 * 8  # delta has the network's precision, float64
    assert {u.wire_bytes for u in run.updates} == {weights + 4 * rows + factors}
    assert hook.up_bytes == 2 * 3 * (weights + 4 * rows + factors)
    assert hook.down_bytes == 2 * 3 * 8 * weights + 3 * factors, "no factor is known before the first round"


@pytest.mark.parametrize("name", ["int8", "topk"])
def test_what_was_sent_and_the_residual_sum_up_to_all_changes(name):
    seen = Sees()
    run = rounds(FedAvg(0.1), Message(**ALL[name]), [seen])
    sent = {k: {} for k in range(3)}
    for cohort in ([0, 1], [0, 2], [0, 1, 2]):
        W = run.theta
        run.step(cohort)
        for update in run.updates:
            for key, p in update.params.items():
                sent[update.client][key] = sent[update.client].get(key, 0) + (p - W[key])
    for client in range(3):
        residual = run.states[client][MESSAGE][RESIDUAL]
        for key, total in sent[client].items():
            meant = sum(change[key] for (_, k), change in seen.meant.items() if k == client)
            torch.testing.assert_close(total + residual[key], meant, rtol=0, atol=1e-14)
    assert any(float(r.abs().max()) > 1e-3 for r in run.states[0][MESSAGE][RESIDUAL].values())


def test_the_residual_identity_is_exact_where_numbers_are():
    message = Message(parameters="topk", share=0.25, error_feedback=True)
    state, total, sent, g = {}, torch.zeros(8), torch.zeros(8), torch.Generator().manual_seed(0)
    for round in range(20):
        change = torch.randint(-9, 10, (8,), generator=g).float()
        update = ClientUpdate(0, 1, 1, {"w": change.clone()})
        state = message.pack(update, {}, state, round, g)
        total, sent = total + change, sent + update.params["w"]
        assert int((update.params["w"] != 0).sum()) <= 2
        assert torch.equal(sent + state[RESIDUAL]["w"], total)


def test_a_dropped_client_keeps_its_residual_and_its_factors():
    message = {"parameters": "int8", "error_feedback": True, "factors_every": 2}
    run = rounds(aligned(), Message(**message), [Sees(drop=(2, 1))])
    run.step(), run.step()
    before = run.states
    run.step()  # factors are due
    assert close(before[1], run.states[1], 0)
    assert not any(close(before[0][MESSAGE][key], run.states[0][MESSAGE][key], 1e-6) for key in (RESIDUAL, FACTORS))
    assert before[0][MESSAGE].keys() == {RESIDUAL, FACTORS}


def test_factors_travel_every_kth_round_and_with_a_first_upload():
    run = rounds(aligned(), Message(factors="int8", factors_every=3), weighting="size")
    full = rounds(aligned()).theta
    weights = 8 * sum(p.numel() for p in full.values())
    with_factors = weights + 15 + 10 + 8 * 11 + 2 * 4 + 2 * 8
    sizes, P = {}, {}
    for cohort in ([0, 1], [0, 1, 2], [0, 2], [0, 1, 2]):
        round = run.round
        run.step(cohort)
        for u in run.updates:
            sizes.setdefault(u.client, []).append(u.wire_bytes)
            P[round, u.client] = u.message[PRECONDITIONERS]["0"].factor
    assert sizes[0] == [with_factors, weights, weights, with_factors]
    assert sizes[1] == [with_factors, weights, with_factors]
    assert sizes[2] == [with_factors, weights, with_factors], "its first upload was in a round without factors"
    assert torch.equal(P[0, 0], P[1, 0]) and torch.equal(P[1, 2], P[2, 2]), "the server keeps the last"
    assert not torch.equal(P[2, 0], P[3, 0])


def test_clients_start_from_the_factors_that_were_sent_down():
    run = rounds(aligned(), Message(broadcast_factors="int8"))
    run.step()
    kept = run.server[SHARED_FACTORS]["0"]
    sent = run.federation.make_broadcast(1).extra[SHARED_FACTORS]["0"].factor
    assert not torch.equal(sent, kept)
    torch.testing.assert_close(sent, kept, rtol=0, atol=0.03 * float(kept.diagonal().max()))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("make", [lambda: aligned(), lambda: FedAvg(0.1, momentum=0.5), lambda: SCAFFOLD(0.1)])
def test_both_executors_send_the_same(name, make):
    torch.manual_seed(0)
    net, clients = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), clients_of((30, 8, 15, 22))
    message = Message(**ALL[name])
    sides = [ExecutorRounds(make(), net, run, clients, message=message) for run in (Sequential(), Vectorized(2))]
    for _ in range(3):
        a, b = (side.step() for side in sides)
    for client in a:
        assert a[client].wire_bytes == b[client].wire_bytes
        assert close(a[client].params, b[client].params, 1e-9) and close(a[client].message, b[client].message, 1e-9)
    assert close(sides[0].theta, sides[1].theta, 1e-9)
    assert sides[0].states.keys() == sides[1].states.keys()
    assert all("trains" not in line and "one after another" not in line for line in sides[1].said), sides[1].said


def test_draws_are_those_of_seed_round_and_client():
    thetas = []
    for seed in (0, 0, 1):
        run = rounds(FedAvg(0.1), Message(parameters="int8"), seed=seed)
        run.step(), run.step()
        thetas.append(run.theta["0.weight"])
    assert torch.equal(thetas[0], thetas[1]) and not torch.equal(thetas[0], thetas[2])


def test_a_direction_is_rounded_itself():
    torch.manual_seed(0)
    run = rounds(PSGD(0.1), Message(parameters="bfloat16"))
    run.step()
    g = run.updates[0].params["0.weight"]
    assert torch.equal(g, g.to(torch.bfloat16).double())


def test_aligned_local_newton_sends_its_factors_smaller_too():
    run = rounds(LocalNewton(0.1, preconditioner=Foof(align=20.0, **DENSE)), Message(factors="int8"))
    W = run.theta
    run.step()
    assert torch.equal(run.theta["0.weight"], weighted_mean([u.params for u in run.updates], [1, 1, 1])["0.weight"])
    assert run.updates[0].wire_bytes == 8 * sum(p.numel() for p in W.values()) + 15 + 10 + 8 * 11 + 2 * 4 + 2 * 8


def test_a_diagonal_travels_as_it_is_in_every_round():
    make = lambda: FedPM(0.1, mix_damping=30.0, preconditioner=Diagonal(damping=30.0))  # noqa: E731
    plain, run = rounds(make()), rounds(make(), Message(factors="int8", factors_every=2))
    for _ in range(2):
        plain.step(), run.step()
    assert all(torch.equal(p, run.theta[name]) for name, p in plain.theta.items())
    assert run.updates[0].wire_bytes == plain.updates[0].wire_bytes


def test_the_first_pass_keeps_the_state_of_messages():
    method = FedPM(0.1, correction="gradient", preconditioner=Foof(**DENSE))
    run = rounds(method, Message(parameters="int8", error_feedback=True))
    run.step()
    before = run.states[0][MESSAGE][RESIDUAL]["0.weight"]
    run.federation.store.discard()
    assert float(before.abs().max()) > 0
    local = run.local()
    local = type(local)(**{**vars(local), "broadcast": run.federation.make_broadcast(1)})
    update, state = local.prepare(run.clients[0])
    assert torch.equal(state[MESSAGE][RESIDUAL]["0.weight"], before) and update.params


@pytest.mark.parametrize("method", [FedNL(mu=0.1), FedNS(), FedNew(), FedDyn()])
def test_a_method_whose_upload_must_arrive_as_it_is_refuses_a_message(method):
    with pytest.raises(ValueError, match=rf"^model.message cannot go with {type(method).__name__}: .{{20,}}$"):
        Federation(nn.Linear(2, 1), method, weighting="uniform", message=Message(parameters="int8"))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"parameters": "int4"}, "parameters must be one of full, bfloat16, int8, topk, qsgd, got 'int4'"),
        ({"factors": "topk"}, "factors must be one of full, bfloat16, int8, low_rank"),
        ({"broadcast_factors": "x"}, "broadcast_factors must be"),
        ({"rounding": "up"}, "rounding must be one of stochastic, nearest"),
        ({"parameters": "topk"}, "topk and a share in"),
        ({"parameters": "int8", "share": 0.1}, "topk and a share in"),
        ({"parameters": "topk", "share": 0.0}, r"share must be in \(0, 1\], got 0.0"),
        ({"parameters": "topk", "share": math.nan}, r"share must be in \(0, 1\]"),
        ({"factor_share": 1.5}, r"factor_share must be in \(0, 1\], got 1.5"),
        ({"levels": 128}, "levels must be in 1..127, got 128"),
        ({"bucket": 0}, "bucket must be"),
        ({"factors_every": 0}, "factors_every must be"),
        ({"error_feedback": True}, "error_feedback cannot go with parameters full"),
        ({"error_feedback": True, "parameters": "qsgd"}, "error_feedback cannot go with parameters qsgd"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(wrong, says):
    with pytest.raises(ValueError, match=says) as error:
        Message(**wrong)
    assert "\n" not in str(error.value)
