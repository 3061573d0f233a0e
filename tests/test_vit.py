"""Vision Transformers as a user starts them: our own under both executors, and timm's by its class path."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parent.parent / "docs" / "howto" / "network.md"
SMALL = ("--rounds", "1", "--model.local_epochs", "1", "--data.num_clients", "2", "--trainer.precision", "64-true")
FEWER = ("--data.limit_train", "null", "--data.limit_test", "null", "--data.participation", "1.0")
NARROW = ("patch", "8"), ("width", "8"), ("depth", "1"), ("heads", "2"), ("mlp_width", "8")


@pytest.fixture
def cifar10(fedpm, tiny_cifar, tmp_path):
    """A round on twenty images."""
    source = ("--data.source", str(tiny_cifar["cifar10_"]), "--data.root", str(tmp_path))

    def run(method, *words, folder):
        configs = ("--config", "configs/cifar10_vit.yaml", "--config", f"configs/method/{method}.yaml")
        return fedpm("fit", *configs, *SMALL, *FEWER, *source, *words, folder=folder)

    return run


@pytest.mark.parametrize("method", ["fedavg", "fedpm"])
def test_ours_is_the_same_under_both_executors(cifar10, capsys, method):
    words = [word for name, value in NARROW for word in (f"--model.net.{name}", value)]
    runs = [cifar10(method, *words, "--model.executor", name, folder=name) for name in ("sequential", "vectorized")]
    assert all(run.code == 0 for run in runs)
    assert "executor: sequential" not in capsys.readouterr().out
    for key in ("train/loss", "test/loss"):
        alone, stacked = (float(run.rows[0][key]) for run in runs)
        assert stacked == pytest.approx(alone, rel=1e-10)
    assert runs[0].rows[0]["comm/up_bytes"] == runs[1].rows[0]["comm/up_bytes"]
    if method == "fedpm":
        rules = (runs[0].folder / "rules.txt").read_text()
        assert re.search(r"positions\.embedding\.weight .* FOOF   diagonal of 16", rules)
        assert re.search(r"blocks\.0\.norm1\.weight .* plain", rules)


@pytest.mark.parametrize("method", ["fedavg", "fedpm"])
def test_timms_trains_by_its_class_path(cifar10, capsys, tmp_path, method):
    pytest.importorskip("timm", reason="timm's networks need the timm extra")
    block = re.search(r'```yaml title="timm_vit.yaml"\n(.*?)```', PAGE.read_text(), re.DOTALL)
    assert block is not None
    (tmp_path / "timm_vit.yaml").write_text(block[1])
    run = cifar10(method, "--config", "timm_vit.yaml", "--model.executor", "vectorized", folder="timm")
    assert run.code == 0 and run.rows[0]["test/loss"] != str(run.summary["initial"]["test/loss"])
    assert "executor: sequential, since" in capsys.readouterr().out
    if method == "fedpm":
        assert re.search(r"blocks\.0\.attn\.qkv\.weight .* FOOF", (run.folder / "rules.txt").read_text())


def test_without_timm_the_extra_is_named(monkeypatch, capsys):
    from fedpm_lightning.configuration import messages, parser

    monkeypatch.setitem(messages.EXTRAS, "no_timm", "timm")
    with pytest.raises(SystemExit):
        parser.ShortErrorParser().error("Parser key \"model.net\": No module named 'no_timm'")
    assert "pip install 'fedpm-lightning[timm]'" in capsys.readouterr().err
