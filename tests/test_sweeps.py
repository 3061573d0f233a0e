"""Every file in sweeps/: valid for W&B, accepted by `fedpm sweep --check`, every point a command line that arrives."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from fedpm_lightning.cli import main
from fedpm_lightning.sweep.points import make_points
from fedpm_lightning.sweep.sweep_file import load_sweep, violations

SWEEPS = Path(__file__).resolve().parent.parent / "sweeps"
ALL = sorted(path.name for path in SWEEPS.glob("*"))


def test_there_are_only_sweep_files():
    assert ALL and all(name.endswith(".yaml") for name in ALL)


@pytest.mark.parametrize("name", ALL)
def test_a_sweep_file_is_valid_and_every_value_arrives(fedpm, name, capsys):
    assert violations(yaml.safe_load((SWEEPS / name).read_text())) == []
    assert main(["sweep", f"sweeps/{name}", "--check", "--no-timing"]) == 0
    assert "every value arrives" in capsys.readouterr().err


@pytest.mark.parametrize("name", ALL)
def test_every_sweep_names_itself_seeds_and_a_metric_that_is_logged(name):
    read = load_sweep(SWEEPS / name)
    assert read.name == Path(name).stem
    assert "seed_everything" in read.parameters, "without it every run has seed 0"
    final = read.name in ("paper_cifar10", "paper_cifar100")  # these train on the validation images too
    assert read.metric is not None
    assert (read.metric.name, read.metric.goal) == ("test/acc" if final else "val/acc", "maximize")


def test_the_ablation_ties_rounds_and_local_epochs(fedpm):
    points = make_points(load_sweep("sweeps/local_epochs.yaml"))
    assert len(points) == 3 * 5 * 3
    assert {p.params["config.epochs"] for p in points} == {
        f"configs/paper/epochs/{name}.yaml" for name in ("50x10", "100x5", "500x1")
    }
