"""Stacked clients give what clients one after another give, through `fedpm fit`, on clients of unequal size."""

from __future__ import annotations

import pytest
import torch

FEDPM = ("--config", "configs/method/fedpm.yaml", "--model.method.cov_every", "2", "--model.method.momentum", "0.5")
MLP = ("--model.net.hidden", "[16]")
SETTINGS = {
    "fedavg": ("--config", "configs/method/fedavg.yaml", *MLP),
    "fedavg momentum and decay": (
        *("--config", "configs/method/fedavg.yaml", *MLP),
        *("--model.method.momentum", "0.9", "--model.method.weight_decay", "0.01", "--model.l2", "0.01"),
    ),
    "fedavg steps": (
        "--config",
        "configs/method/fedavg.yaml",
        *MLP,
        "--model.local_epochs",
        "null",
        "--model.local_steps",
        "5",
    ),
    "fedprox": ("--config", "configs/method/fedprox.yaml", *MLP, "--model.method.momentum", "0.5"),
    "scaffold": ("--config", "configs/method/scaffold.yaml", *MLP, "--model.method.momentum", "0.5"),
    "fedadam": ("--config", "configs/method/fedadam.yaml", *MLP),
    "fedavgm": ("--config", "configs/method/fedavgm.yaml", *MLP),
    "local_newton": ("--config", "configs/method/local_newton.yaml", *MLP),
    "fedpm": (*FEDPM, *MLP),
    "fedpm ema, inv_every": (*FEDPM, *MLP, "--model.method.mix_factor", "ema", "--model.method.inv_every", "3"),
    "fedpm wide": (*FEDPM, "--model.net.hidden", "[96]", "--data.batch_size", "7"),
}


@pytest.fixture
def both(quickstart, capsys):
    """Run the same words under both executors in float64; return the finished runs."""

    def run(*words, chunk="null", rounds="3"):
        short = ("--rounds", rounds, "--trainer.precision", "64-true", "--model.local_epochs", "2", *words)
        one = quickstart(*short, "--model.executor", "sequential", folder="one")
        capsys.readouterr()
        stack = ("--model.executor", "vectorized", "--model.clients_per_chunk", chunk)
        many = quickstart(*short, *stack, folder="many")
        printed = capsys.readouterr().out
        assert one.code == many.code == 0
        assert one.summary["executor"] == "sequential"
        assert many.summary["executor"].startswith("vectorized"), printed
        assert "one after another" not in printed
        return one, many

    return run


def theta(run):
    return torch.load(run.folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]


def agree(one, many, tolerance=1e-11):
    a, b = theta(one), theta(many)
    for name in a:
        assert torch.allclose(a[name], b[name], rtol=tolerance, atol=tolerance * float(a[name].abs().max())), name
    for before, after in zip(one.rows, many.rows, strict=True):
        for key, value in before.items():
            if not key.startswith("time/") and value:
                assert float(after[key]) == pytest.approx(float(value), rel=1e-9, abs=1e-12), key


@pytest.mark.parametrize("name", SETTINGS)
def test_it_gives_what_clients_one_after_another_give(both, name):
    agree(*both(*SETTINGS[name]))
