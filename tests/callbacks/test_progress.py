from __future__ import annotations

import io

import pytest
from rich.console import Console

from fedpm_lightning.callbacks import progress as progress_module
from fedpm_lightning.callbacks.progress import RoundProgress
from fedpm_lightning.callbacks.round_bars import RoundBars
from fedpm_lightning.callbacks.run_files import RunFiles

# torch renamed what Lightning still imports.
pytestmark = pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning")


def test_one_line_a_round_where_there_is_no_terminal(fit, capsys):
    fit([RoundProgress(run_dir="runs/toy")])
    lines = capsys.readouterr().out.splitlines()
    assert "initial  val/acc 0.1000  loss" not in lines and "initial  val/acc 0.1000" in lines
    assert [line for line in lines if line.startswith("round ")] == [
        "round 1/3  val/acc 0.2000  loss 1",
        "round 2/3  val/acc 0.6000  loss 0.5",
        "round 3/3  val/acc 0.4000  loss 0.3333",
    ]
    assert any("best val/acc" in line for line in lines)
    assert "up 3 kB  down 500 B  6.0 s" in lines and lines[-1] == "run: runs/toy"


@pytest.mark.parametrize("first", ["files", "progress"])
def test_figures_do_not_depend_on_the_order_of_callbacks(fit, capsys, tmp_path, config, first):
    callbacks = [RunFiles(tmp_path / "run", config), RoundProgress()]
    fit(callbacks if first == "files" else callbacks[::-1])
    out = capsys.readouterr().out
    assert "initial  val/acc 0.1000" in out and "round 3/3  val/acc 0.4000  loss 0.3333" in out
    assert out.splitlines()[-1] == f"run: {tmp_path / 'run'}"


def test_a_run_ends_with_its_place_among_its_siblings(fit, capsys, tmp_path, config):
    for name in ("first", "second"):
        fit([RunFiles(tmp_path / "runs" / name, config), RoundProgress()])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("place")] == [
        "place 1 (shared) of 2 finished runs on toy alpha=0.1 in runs/ by best val/acc"
    ]
    assert lines[-2:] == ["  this run 0.6000, next 0.6000 (FedAvg s7 in first)", f"run: {tmp_path / 'runs' / 'second'}"]


def test_bars_on_a_terminal(fit, capsys, monkeypatch):
    drawn = io.StringIO()
    console = Console(file=drawn, force_terminal=True, width=120)
    monkeypatch.setattr("fedpm_lightning.callbacks.round_bars._REFRESH_S", 0.0)
    monkeypatch.setattr(progress_module, "RoundBars", lambda done, total: RoundBars(done, total, console))
    bar = RoundProgress(plain=False)
    fit([bar])
    assert "3/3" in drawn.getvalue() and "2/2" in drawn.getvalue() and "val/acc 0.6000" in drawn.getvalue()
    assert bar._bars is None, "the terminal must be given back"
    assert "round 1/3" not in capsys.readouterr().out


def test_bars_are_closed_before_an_error_is_shown(fit, tiny):
    bar = RoundProgress(plain=False)
    with pytest.raises(OSError):
        fit([bar], module=tiny.Module(fail=(2, OSError("disk"))))
    assert bar._bars is None


def test_lines_above_the_bars_are_printed_as_they_are():
    drawn = io.StringIO()
    bars = RoundBars(0, None, Console(file=drawn, force_terminal=True, width=80))
    bars.print("layer [conv1] foof")
    bars.close()
    assert "layer [conv1] foof" in drawn.getvalue()


def test_a_disabled_bar_is_silent(fit, capsys):
    class Silent(RoundProgress):
        def setup(self, trainer, pl_module, stage):
            super().setup(trainer, pl_module, stage)
            self.disable()

    fit([Silent()])
    assert capsys.readouterr().out == ""
