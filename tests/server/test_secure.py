"""Masked sums: what the server sees of one client is uniform, and the sum is that of the rounded numbers, exactly."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedpm_lightning.callbacks import CoordinateMedian, SecureAggregation
from fedpm_lightning.errors import AggregationError
from fedpm_lightning.methods import SCAFFOLD, FedAvg, FedPM
from fedpm_lightning.preconditioners import Foof
from fedpm_lightning.round import Hooks
from fedpm_lightning.server.aggregator import MeanAggregator
from fedpm_lightning.server.secure import FixedPoint, PairwiseMasks, SecureAggregator
from fedpm_lightning.testing.rounds import Rounds
from fedpm_lightning.testing.stacks import clients_of
from fedpm_lightning.types import ClientUpdate, LocalWork

SIZES = (30, 3, 8, 15, 22)
BITS, FRACTION = 40, 16


def aggregator(theta, clients, round=0, bits=BITS, least=2):
    number = FixedPoint(bits, FRACTION)
    masks = PairwiseMasks(0, round, bits)
    return SecureAggregator(lambda: MeanAggregator(theta), lambda: clients, number, masks, least)


def updates(n, count=5, seed=0):
    g = torch.Generator().manual_seed(seed)
    return {"w": torch.zeros(n)}, [ClientUpdate(k, 1, 1, {"w": torch.randn(n, generator=g)}) for k in range(count)]


def chi_square(values):
    """Of bytes against the uniform distribution: 255 degrees of freedom, below 330.5 with probability 0.999."""
    counts = torch.bincount(values, minlength=256).double()
    expected = len(values) / 256
    return float(((counts - expected).square() / expected).sum())


@pytest.mark.parametrize("client", [0, 2, 4])
def test_one_upload_is_uniform_whatever_is_in_it(client):
    """n = 51,200 numbers, all alike: each byte of the masked integers is uniform, and none of those in the clear is."""
    n = 51_200
    theta = {"w": torch.zeros(n)}
    same = ClientUpdate(client, 1, 1, {"w": torch.full((n,), 0.7)})
    y = aggregator(theta, range(5)).upload(same, 3.0)[:n]
    assert int(y.min()) >= 0 and int(y.max()) < 2**BITS
    plain = FixedPoint(BITS, FRACTION).encode(torch.full((n,), 2.1, dtype=torch.float64), 5)
    for byte in range(BITS // 8):
        assert chi_square((y >> 8 * byte) & 255) < 330.5
        assert chi_square((plain >> 8 * byte) & 255) > 1e6
    again = aggregator(theta, range(5), round=1).upload(same, 3.0)[:n]
    assert chi_square((y - again) & 255) < 330.5, "nor does a second round tell more"


def test_the_sum_is_that_of_the_rounded_numbers_in_any_order():
    theta, sent = updates(1000)
    weights = [1.0, 2.0, 3.0, 4.0, 5.0]
    rounded = [(u.params["w"].double() * w * 2**FRACTION).round() for u, w in zip(sent, weights, strict=True)]
    expected = (sum(rounded) / 2**FRACTION / 15).float()
    for order in (range(5), [3, 1, 4, 0, 2]):
        secure = aggregator(theta, range(5))
        for k in order:
            secure.add(sent[k], weights[k])
        assert torch.equal(secure.finish()["w"], expected)
    clear = sum(w * u.params["w"].double() for u, w in zip(sent, weights, strict=True))
    assert float((sum(rounded) / 2**FRACTION - clear).abs().max()) <= 5 * 2.0 ** -(FRACTION + 1)


@pytest.mark.parametrize("lost", [{0}, {2}, {1, 4}])
def test_the_masks_of_clients_that_do_not_return_are_taken_out(lost):
    theta, sent = updates(1000)
    secure, alone = aggregator(theta, range(5)), aggregator(theta, sorted(set(range(5)) - lost))
    for k in set(range(5)) - lost:
        secure.add(sent[k], 1.0)
        alone.add(sent[k], 1.0)
    assert not torch.equal(secure.tensors()[0], alone.tensors()[0])
    assert torch.equal(secure.finish()["w"], alone.finish()["w"])


def test_ranks_add_their_masked_sums():
    theta, sent = updates(1000)
    ranks = [aggregator(theta, range(5)) for _ in range(2)]
    whole = aggregator(theta, range(5))
    for k in (0, 1, 3, 4):
        ranks[k % 2].add(sent[k], 1.0)
        whole.add(sent[k], 1.0)
    for a, b in zip(ranks[0].tensors(), ranks[1].tensors(), strict=True):
        a += b  # what an all-reduce does
    assert torch.equal(ranks[0].finish()["w"], whole.finish()["w"])


@pytest.mark.parametrize("bad", [1e9, float("nan"), float("inf")])
def test_a_number_that_does_not_fit_is_refused(bad):
    theta, sent = updates(10)
    sent[0].params["w"][3] = bad
    with pytest.raises(AggregationError, match=r"does not fit into 40 bits with 16 behind the point.* Raise bits"):
        aggregator(theta, range(5)).add(sent[0], 1.0)
    number = FixedPoint(BITS, FRACTION)
    edge = torch.tensor([number.range(5), -number.range(5)], dtype=torch.float64)
    total = sum(number.encode(edge, 5) for _ in range(5))
    assert torch.allclose(number.decode(number.reduce_(total)), 5 * edge, rtol=1e-9), "five at the bound still fit"


def test_a_sum_of_too_few_stays_closed():
    theta, sent = updates(10)
    secure = aggregator(theta, range(5), least=3)
    for k in (0, 1):
        secure.add(sent[k], 1.0)
    with pytest.raises(AggregationError, match="only 2 clients returned, and a sum of fewer than 3 stays closed"):
        secure.finish()


class Lost(Hooks):
    def on_client_end(self, round, update):
        update.dropped = update.client == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: FedAvg(0.1),
        lambda: SCAFFOLD(0.1),
        lambda: FedPM(0.1, preconditioner=Foof(damping=1.0)),
        lambda: FedPM(0.1, preconditioner=Foof(damping=1.0, align=5.0)),
    ],
    ids=["FedAvg", "SCAFFOLD", "FedPM", "aligned"],
)
@pytest.mark.parametrize("hooks", [(), (Lost(),)], ids=["all", "one lost"])
def test_any_method_learns_as_in_the_clear(make, hooks):
    weighting = make().weightings[0]

    def run(*more):
        net = nn.Linear(6, 3).double()
        torch.manual_seed(0)
        nn.init.normal_(net.weight)
        nn.init.zeros_(net.bias)
        return Rounds(make(), net, clients_of(SIZES), LocalWork(epochs=1), hooks=[*more, *hooks], weighting=weighting)

    plain, secure = run(), run(SecureAggregation(bits=60, fraction_bits=32))
    for _ in range(2):
        a, b = plain.step(), secure.step()
    assert all(torch.allclose(a[name], b[name], atol=1e-7) for name in a)
    assert secure.federation.row["clients/returned"] == 5 - len(hooks)


def test_two_aggregations_are_refused():
    with pytest.raises(ValueError, match="SecureAggregation and CoordinateMedian each aggregate a round"):
        Rounds(FedAvg(), nn.Linear(6, 3), clients_of(SIZES), hooks=[SecureAggregation(), CoordinateMedian()])
