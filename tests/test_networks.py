"""Networks as users bring them: precisions, batch norm, layers that never run, frozen parts, weighted losses."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedpm_lightning import FederatedModule
from fedpm_lightning.methods import FedAvg
from fedpm_lightning.round.data import check_network

SHORT = ("--rounds", "2", "--model.local_epochs", "1")
AVG = ("--config", "configs/method/fedavg.yaml")


class WithNorm(nn.Sequential):
    """A batch-normalised network for digits."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))


class WithSpareLayer(nn.Module):
    """A network of which one layer never runs and another is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.never, self.last = nn.Linear(64, 32), nn.Linear(7, 7), nn.Linear(32, 10)
        self.first.weight.requires_grad_(False)

    def forward(self, x):
        return self.last(self.first(x.flatten(1)).relu())


def final(run, key="test/loss"):
    return float(run.rows[-1][key])


@pytest.mark.parametrize("method", ["fedavg", "fedpm"])
def test_other_precisions_train_as_float32_does(quickstart, method):
    words = ("--rounds", "1", "--model.local_epochs", "1", "--config", f"configs/method/{method}.yaml")
    reference = quickstart(*words, folder="32")
    for precision in ("bf16-mixed", "64-true"):
        other = quickstart(*words, "--trainer.precision", precision, folder=precision)
        assert other.code == 0
        assert final(other) == pytest.approx(final(reference), rel=0.05)
        assert final(other) < other.summary["initial"]["test/loss"]


@pytest.mark.parametrize("policy", ["mix", "local", "freeze"])
def test_buffers_follow_their_policy(quickstart, policy):
    run = quickstart(*SHORT, *AVG, "--model.net", f"{__name__}.WithNorm", "--model.buffer_policy", policy)
    assert run.code == 0
    state = torch.load(run.folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    moved = not torch.equal(state["net.2.running_mean"], torch.zeros(32))
    assert moved == (policy == "mix")
    assert state["net.2.num_batches_tracked"] == 0 and state["net.2.num_batches_tracked"].dtype == torch.int64
    sent = sum(p.numel() for p in WithNorm().parameters()) * 4
    buffers = (2 * 32 * 4 + 8) if policy == "mix" else 0
    assert float(run.rows[0]["comm/down_bytes"]) == 10 * (sent + buffers)


def test_frozen_statistics_are_used_in_training(quickstart):
    """With frozen statistics training and evaluation see the same function; with batch statistics they do not."""
    words = (*SHORT, *AVG, "--model.net", f"{__name__}.WithNorm", "--model.local_epochs", "3")
    frozen = quickstart(*words, "--model.buffer_policy", "freeze")
    assert final(frozen) < 0.95 * frozen.summary["initial"]["test/loss"]


@pytest.mark.parametrize("method", ["fedpm", "local_newton", "scaffold"])
def test_a_layer_that_never_runs_and_a_frozen_one_stay_where_they_are(quickstart, method):
    config = ("--config", f"configs/method/{method}.yaml")
    run = quickstart(*SHORT, *config, "--model.net", f"{__name__}.WithSpareLayer")
    assert run.code == 0
    assert final(run) < run.summary["initial"]["test/loss"]


def test_a_weighted_loss_moves_with_the_module():
    loss = nn.CrossEntropyLoss(weight=torch.ones(10))
    module = FederatedModule(WithNorm(), FedAvg(), loss=loss).double()
    assert loss in module.modules() and loss.weight.dtype == torch.float64


def test_complex_parameters_are_refused_by_name():
    class Rotates(nn.Module):
        def __init__(self):
            super().__init__()
            self.phase = nn.Parameter(torch.ones(3, dtype=torch.complex64))

    with pytest.raises(ValueError, match="parameter phase is complex, which no method mixes"):
        check_network(Rotates(), None)
