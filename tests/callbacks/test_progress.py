from __future__ import annotations

import io
import re
import time
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from fedpm_lightning.callbacks.run import progress as progress_module
from fedpm_lightning.callbacks.run.files import RunFiles
from fedpm_lightning.callbacks.run.progress import RoundProgress, model_line
from fedpm_lightning.callbacks.run.progress_bars import RoundBars

# torch renamed what Lightning still imports.
pytestmark = pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning")


def test_one_line_a_round_where_there_is_no_terminal(fit, capsys):
    fit([RoundProgress(run_dir="runs/toy")])
    lines = capsys.readouterr().out.splitlines()
    assert "initial  val/acc 0.1000  loss" not in lines and "initial  val/acc 0.1000" in lines
    assert "Linear with 2 parameters on cpu" in lines
    rounds = [line for line in lines if line.startswith("round ")]
    assert [re.sub(r"left \d+\.\d s$", "left", line) for line in rounds] == [
        "round 1/3  val/acc 0.2000  loss 1  left",
        "round 2/3  val/acc 0.6000  loss 0.5  left",
        "round 3/3  val/acc 0.4000  loss 0.3333",
    ]


def test_the_time_left_is_that_of_the_rounds_of_this_start():
    bar = RoundProgress()
    bar._began_at, bar._history.rows = time.monotonic() - 20, [{}, {}]
    trainer = SimpleNamespace(max_epochs=362, current_epoch=1)
    assert bar._left(trainer) == ["left 1 h 00 min"]
    assert bar._left(SimpleNamespace(max_epochs=2, current_epoch=1)) == []
    assert bar._left(SimpleNamespace(max_epochs=-1, current_epoch=1)) == []


def test_parameters_are_counted_and_those_that_train():
    net = torch.nn.Linear(1000, 2)
    assert model_line(net) == "Linear with 2,002 parameters"
    net.bias.requires_grad = False
    assert model_line(net) == "Linear with 2,002 parameters, 2,000 of them trained"


def test_a_run_says_its_totals(fit, capsys):
    fit([RoundProgress(run_dir="runs/toy")])
    lines = capsys.readouterr().out.splitlines()
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
    monkeypatch.setattr("fedpm_lightning.callbacks.run.progress_bars._REFRESH_S", 0.0)
    monkeypatch.setattr(progress_module, "RoundBars", lambda done, total: RoundBars(done, total, console))
    bar = RoundProgress(plain=False)
    fit([bar])
    assert "3/3" in drawn.getvalue() and "2/2" in drawn.getvalue() and "val/acc 0.6000" in drawn.getvalue()
    assert bar._bars is None, "the terminal must be given back"
    assert "round 1/3" not in capsys.readouterr().out


@pytest.mark.parametrize("width", [60, 80])
def test_the_time_left_stands_whole_beside_long_figures(width):
    drawn = io.StringIO()
    bars = RoundBars(0, 2000, Console(file=drawn, force_terminal=True, width=width))
    bars.begin("clients", 1000)
    for _ in range(2):
        bars.end_round("val/acc 0.9412  test/acc 0.9381  gap 1.234e-05  loss 0.1234  123.4 s  " * 2)
        time.sleep(0.01)
    bars.close()
    paper = Console(file=io.StringIO(), width=width)
    paper.print(bars._progress.get_renderable())
    rounds, clients, figures = paper.file.getvalue().splitlines()
    assert re.fullmatch(r"rounds .* 2/2000 +\d:\d\d:\d\d *", rounds), rounds
    assert clients.startswith("clients") and figures.startswith("val/acc 0.9412") and figures.endswith("…")


def test_mixing_and_evaluating_show_as_they_come(fit, monkeypatch):
    told = []
    drawn = Console(file=io.StringIO(), force_terminal=True, width=80)

    class Told(RoundBars):
        def begin(self, work, total=None):
            super().begin(work, total)
            told.append((work, self._progress.tasks[1].total, self._progress.tasks[1].completed))

        def advance(self):
            super().advance()
            told.append(self._progress.tasks[1].completed)

    monkeypatch.setattr(progress_module, "RoundBars", lambda done, total: Told(done, total, drawn))
    fit([RoundProgress(plain=False)], rounds=1)
    assert told == [("clients", 2, 0), 1, 2, ("mixing", None, 0), ("evaluating", 1, 0), 1]


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
