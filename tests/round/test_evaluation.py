"""Evaluation sums in float64 whatever the precision, and the start check knows networks that cannot be trained."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedpm_lightning.client.objective import Objective
from fedpm_lightning.data import FederatedData
from fedpm_lightning.round.data import check_network
from fedpm_lightning.round.evaluation import Evaluation


def evaluated(dtype, n=359, batch=64):
    """A split of n samples of which 206 are right, in batches."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(n, 3, generator=generator, dtype=torch.float64).to(dtype)
    targets = logits.argmax(1)
    targets[206:] = (targets[206:] + 1) % 3
    evaluation = Evaluation(Objective())
    for x, y in zip(logits.split(batch), targets.split(batch), strict=True):
        evaluation.update("test", nn.Identity().to(dtype), (x, y))
    return evaluation.compute("test"), logits, targets


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_accuracy_is_a_share_of_samples_in_every_precision(dtype):
    assert evaluated(dtype)[0]["test/acc"] == 206 / 359


def test_a_loss_of_float64_keeps_its_digits():
    figures, logits, targets = evaluated(torch.float64)
    assert figures["test/loss"] == pytest.approx(float(nn.functional.cross_entropy(logits, targets)), rel=1e-14)


def test_nothing_added_gives_nothing_and_the_next_sum_starts_anew():
    evaluation = Evaluation(Objective())
    assert evaluation.compute("val") == {}
    evaluation.update("val", nn.Identity(), (torch.eye(2), torch.tensor([0, 1])))
    assert evaluation.compute("val")["val/acc"] == 1 and evaluation.compute("val") == {}


def test_perplexity_is_exp_of_the_mean_loss_where_tokens_are_predicted():
    logits, targets = torch.randn(50, 4, dtype=torch.float64), torch.arange(50) % 4
    evaluation = Evaluation(Objective())
    for language in (True, False):
        for x, y in zip(logits.split(16), targets.split(16), strict=True):
            evaluation.update("val", nn.Identity(), (x, y))
        found = evaluation.compute("val", language)
        assert ("val/perplexity" in found) == language
        if language:
            expected = torch.exp(nn.functional.cross_entropy(logits, targets))
            assert found["val/perplexity"] == pytest.approx(float(expected), rel=1e-14)
    evaluation.update("val", nn.Identity(), (torch.tensor([[1e4, 0.0]]), torch.tensor([1])))
    assert evaluation.compute("val", True)["val/perplexity"] == float("inf"), "beyond a float: no error"


class Pair(nn.Linear):
    def forward(self, input):
        return super().forward(input.flatten(1)), None


class Turned(nn.Linear):
    def __init__(self):
        super().__init__(64, 10)
        self.phase = nn.Parameter(torch.ones(1, dtype=torch.complex64))

    def forward(self, input):
        return super().forward(input.flatten(1)) * self.phase.real


@pytest.fixture(scope="module")
def digits():
    return FederatedData(num_clients=4)


@pytest.mark.parametrize(
    ("net", "told"),
    [
        (Pair(64, 10), "model.net Pair returns a tuple: wrap it"),
        (Turned(), "model.net Turned: parameter phase is complex"),
    ],
)
def test_networks_that_cannot_be_trained_are_named(digits, net, told):
    with pytest.raises(ValueError, match=told):
        check_network(net, digits)


def test_a_norm_without_running_statistics_passes_the_start_check(digits):
    norm = nn.BatchNorm1d(8, track_running_stats=False)
    check_network(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), norm, nn.Linear(8, 10)), digits)
