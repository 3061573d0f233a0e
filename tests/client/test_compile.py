"""model.compile: the same rounds as without, steps of FOOF observed all the same, and what it does not go with."""

from __future__ import annotations

import shutil

import pytest
import torch

from fedpm_lightning.client.local_loop import local_loop
from fedpm_lightning.client.local_model import LocalModel
from fedpm_lightning.client.objective import Objective
from fedpm_lightning.models import MLP
from fedpm_lightning.preconditioners import Foof
from fedpm_lightning.preconditioners.foof_optimizer import FOOF

SMALL = ("--model.net.hidden", "[16]", "--model.local_epochs", "1", "--rounds", "1")
needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler here")


@needs_compiler
def test_a_compiled_round_is_the_plain_one(quickstart):
    alike = ("--data.partition", "iid", "--data.limit_train", "320", "--data.val_fraction", "0")  # one graph
    words = ("--config", "configs/method/fedavg.yaml", *SMALL, *alike)
    plain = quickstart(*words, folder="plain")
    compiled = quickstart(*words, "--model.compile", "default", folder="compiled")
    assert plain.code == compiled.code == 0
    assert compiled.summary["executor"] == "sequential"
    for key in ("train/loss", "test/loss", "test/acc"):
        assert float(compiled.rows[-1][key]) == pytest.approx(float(plain.rows[-1][key]), rel=1e-4)


def test_a_step_that_observes_does_not_take_the_compiled_network():
    torch.manual_seed(0)
    model = LocalModel(MLP(4, (5,), 3), Objective(), compile="default")
    model._compiled = None if model._compiled is None else lambda x: pytest.fail("hooks would not run")
    batches = [(torch.randn(6, 4), torch.arange(6) % 3)] * 2
    local_loop(
        model,
        batches,
        FOOF(model.params, model.layers, Foof(damping=1.0, cov_every=1, inv_every=1, max_rows=None), lr=0.1),
    )
    with pytest.raises(pytest.fail.Exception, match="hooks"):
        local_loop(model, batches, torch.optim.SGD(model.params.values(), lr=0.1))


def test_stacked_clients_are_not_compiled(quickstart, capsys):
    run = quickstart("--model.compile", "default", "--model.executor", "vectorized", *SMALL)
    assert run.code != 0
    assert "model.compile default needs one client after another" in capsys.readouterr().err


def test_an_unknown_mode_is_told_the_known_ones(quickstart, capsys):
    assert quickstart("--model.compile", "fast", *SMALL).code == 2
    assert "reduce-overhead" in capsys.readouterr().err
