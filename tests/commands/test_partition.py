"""`fedpm partition` shows the split that `fedpm fit` trains on, from the same words, without a model or a trainer."""

from __future__ import annotations

import json
import sys

import pytest
from lightning.pytorch import LightningModule

from fedpm_lightning.cli import main

DIGITS = ("--config", "configs/quickstart.yaml")


@pytest.fixture
def partition(fedpm, tmp_path, capsys, monkeypatch):
    """Run the command; a model that is built fails."""

    def forbidden(*args, **kwargs):
        raise AssertionError("no model is needed")

    def run(*words: str) -> tuple[int, str, str]:
        with monkeypatch.context() as patch:
            patch.setattr(LightningModule, "__init__", forbidden)
            code = main(["partition", *words])
        return (code, *capsys.readouterr())

    return run


@pytest.mark.pictures
def test_it_is_the_split_of_fit(partition, quickstart, tmp_path, capsys):
    words = ("--data.partition.alpha", "0.3", "--seed_everything", "4", "--data.num_clients", "5")
    code, out, _ = partition(*DIGITS, *words, "--output", "split")
    saved = json.loads((tmp_path / "split" / "partition.json").read_text())
    assert code == 0 and "digits, Dirichlet(alpha=0.3, min_samples=1), seed 4" in out
    assert not (tmp_path / "runs").exists() and not (tmp_path / "run").exists()

    run = quickstart(*words, "--rounds", "1", "--model.local_epochs", "1")
    written = json.loads((run.folder / "partition.json").read_text())
    assert {"data": "digits", **written} == saved
    assert written["sha256"][:12] in out
    assert run.summary["heterogeneity"] == written["heterogeneity"]
    found = written["heterogeneity"]
    assert f"mean {found['tv_mean']:.3f}, max {found['tv_max']:.3f}" in out
    assert (run.folder / "partition.png").read_bytes().startswith(b"\x89PNG")

    # the run's folder stands for its configuration, as in fit
    capsys.readouterr()
    code, again, _ = partition("--run_dir", str(run.folder))
    assert code == 0 and written["sha256"][:12] in again


def test_files(partition, tmp_path):
    _, _, err = partition(*DIGITS, "--output", "deep/folder")
    names = {file.name for file in (tmp_path / "deep" / "folder").iterdir()}
    kinds = ("heatmap", "bubbles", "bars")
    assert names == {"partition.json", *(f"partition-{kind}.{end}" for kind in kinds for end in ("pdf", "png"))}
    assert err.count("saved: ") == 7


def test_help_speaks_of_its_own_verb(partition):
    assert partition("--help")[1].startswith("usage: fedpm partition")


def test_a_model_need_not_be_named(partition):
    code, out, _ = partition("--data.partition", "Shards", "--data.num_clients", "40")
    assert code == 0 and "40 clients" in out and "class 9" in out


def test_binary_data(partition, tiny_libsvm):
    words = ("--config", "configs/a9a.yaml", "--data.source", str(tiny_libsvm), "--data.num_clients", "4")
    code, out, _ = partition(*words, "--data.partition.clients_size", "15")
    assert code == 0 and "4 clients, 60 samples" in out and "of 2 (exp" in out


def test_without_matplotlib_the_figures_are_saved(partition, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, _, err = partition(*DIGITS, "--output", "split")
    assert code == 0 and "no pictures: plots need matplotlib" in err
    assert [file.name for file in (tmp_path / "split").iterdir()] == ["partition.json"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--data.num_clients", "0"], 1, "data.num_clients must be at least 1, got 0"),
        (["--data.partition", "Dirichle"], 2, "there is no class 'Dirichle'"),
        (["--data.partition.alpha", "-1"], 1, "alpha must be a finite number above 0, got -1"),
        (["--data.bogus", "1"], 2, "data.bogus"),
    ],
)
def test_a_mistake_reads_as_in_fit(partition, words, code, said):
    found, _, err = partition(*DIGITS, *words)
    assert found == code and said in err


def test_a_change_of_partition_leaves_nothing_behind(partition, tmp_path):
    """As in fit: what the lower file says of Dirichlet is Dirichlet's, so another class has its own default."""
    lower = "data: {partition: {class_path: fedpm_lightning.data.Dirichlet, init_args: {alpha: 7, min_samples: 9}}}"
    (tmp_path / "lower.yaml").write_text(lower)
    (tmp_path / "upper.yaml").write_text("data: {partition: {class_path: fedpm_lightning.data.DirichletClients}}")
    assert "Dirichlet(alpha=7, min_samples=9)" in partition("--config", "lower.yaml")[1]
    out = partition("--config", "lower.yaml", "--config", "upper.yaml")[1]
    assert "DirichletClients(alpha=0.1, min_samples=1)" in out


def test_roles_of_a_play_stand_by_name(partition, tmp_path, tiny_play):
    words = ["--config", "configs/shakespeare.yaml", "--data.source", str(tiny_play), "--data.clients_per_round", "2"]
    code, out, _ = partition(*words, "--data.num_clients", "3", "--output", "split")
    assert code == 0 and "shakespeare, Natural(column=client_id, clients=largest, min_samples=1), seed 0" in out
    saved = json.loads((tmp_path / "split" / "partition.json").read_text())
    assert saved["names"] == ["FIRST WITCH", "Nurse", "ROMEO"]
    for name, size in zip(saved["names"], saved["sizes"], strict=True):
        assert any(line.rstrip().endswith(name) and f" {size:,} " in line for line in out.splitlines())
