"""What is printed at the end of a round and of a run: metrics in a line, a small table, the rank among other runs."""

from __future__ import annotations

import math
import statistics
import time
from pathlib import Path
from typing import NamedTuple

from fedpm_lightning.report.history import History, Monitor, Row, monitor_from
from fedpm_lightning.report.records import RunError, read_summary
from fedpm_lightning.report.run import Run
from fedpm_lightning.report.tables.grid import column_head
from fedpm_lightning.report.units import human_bytes, human_seconds

_PATIENCE_S = 2.0  # a folder of thousands on a slow disk must not hold up the end of a run


class Sibling(NamedTuple):
    """A finished run and its figure at its best round."""

    run: Run
    monitor: Monitor
    value: float


def ranking_lines(run_dir: str | Path, patience_s: float = _PATIENCE_S) -> list[str]:
    """Rank a finished run among its sibling folders: same data, split, number of rounds and metric.

    Only the summaries are read, no curves; what cannot be read is skipped.

    Args:
        run_dir: The run's folder; its siblings are the other folders in the one above.
        patience_s: After so many seconds the rest of the siblings is left unread, and the lines say so.

    Returns:
        Up to three lines; none if the run did not finish or stands alone.
    """
    folder = Path(run_dir).resolve()
    me = _read(folder)
    if me is None:
        return []
    monitor = me.monitor
    others, complete = _siblings(folder, me, monitor, patience_s)
    if not others:
        return []
    ahead = [other for other in others if monitor.better(other.value, me.value)]
    among = f"{len(others) + 1} finished runs{'' if complete else f' (those read in {patience_s:g} s)'}"
    where = column_head(me.run.column)
    shared = " (shared)" if any(other.value == me.value for other in others) else ""
    place = f"place {len(ahead) + 1}{shared} of {among} on {where} in {folder.parent.name}/ by best {monitor.key}"
    return [place, _leader(me, others, monitor), *_same_setting(me, others, monitor)]


def _siblings(folder: Path, me: Sibling, monitor: Monitor, patience_s: float) -> tuple[list[Sibling], bool]:
    """Return the runs to compare with, and whether there was time to read all."""
    until = time.monotonic() + patience_s
    found: list[Sibling] = []
    for path in sorted(folder.parent.iterdir()):
        if time.monotonic() > until:
            return found, False
        if path == folder or not (path / "summary.json").is_file():
            continue
        other = _read(path)
        if other is None or other.run.column != me.run.column:
            continue
        if other.run.config.get("rounds") != me.run.config.get("rounds"):  # more rounds, a better best
            continue
        if other.monitor == monitor:
            found.append(other)
    return found, True


def _read(folder: Path) -> Sibling | None:
    """Read a finished run's summary; None for any other, and for one whose best figure is unknown."""
    try:
        summary = read_summary(folder)
    except (RunError, OSError):
        return None
    monitor = monitor_from(summary)
    config = summary.pop("config", None) or {}
    run = Run(folder, config, summary, History())
    best = summary.get("best")
    value = best.get(monitor.key) if monitor and best else None
    if monitor is None or run.state != "finished" or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return Sibling(run, monitor, float(value))


def _leader(me: Sibling, others: list[Sibling], monitor: Monitor) -> str:
    """Name the best run, or the runner-up if this one is the best."""
    pick = max if monitor.mode == "max" else min
    other = pick(others, key=lambda one: one.value)
    role = "first" if monitor.better(other.value, me.value) else "next"
    theirs = f"{other.run.label} s{other.run.seed} in {other.run.path.name}"
    mine, best = figure_text(monitor.key, me.value), figure_text(monitor.key, other.value)
    return f"  this run {mine}, {role} {best} ({theirs})"


def _same_setting(me: Sibling, others: list[Sibling], monitor: Monitor) -> list[str]:
    """Give the mean over the seeds of this run's own setting, when others ran it with other seeds."""
    seeds = {me.run.seed: me.value}
    for other in others:
        if other.run.setting == me.run.setting:
            seeds.setdefault(other.run.seed, other.value)
    if len(seeds) < 2:
        return []
    mean, std = statistics.fmean(seeds.values()), statistics.stdev(seeds.values())
    spread = f"{figure_text(monitor.key, mean)} ± {figure_text(monitor.key, std)}"
    return [f"  {len(seeds)} seeds of this setting: {spread}"]


_SHOWN = {"val/acc": "val/acc", "test/acc": "test/acc", "opt/gap": "gap"}


def figures(row: Row) -> list[str]:
    """Return the parts of a round's line: accuracies or the gap, the training loss, the seconds."""
    shown = [f"{name} {figure_text(key, row[key])}" for key, name in _SHOWN.items() if key in row]
    # A round that was not evaluated still has its training loss; an initial evaluation has only the others.
    loss = next((row[key] for key in ("train/loss", "val/loss", "test/loss") if key in row), None)
    if loss is not None:
        shown.append(f"loss {loss:.4g}")
    if "time/round_s" in row:
        shown.append(f"{row['time/round_s']:.1f} s")
    return shown


def recap_table(history: History) -> str:
    """Lay out initial, best and final figures, with the bytes and seconds of the whole run."""
    best, final = history.best, history.final
    monitor = history.monitor.key if history.monitor else ""
    head = ["", "initial", f"best {monitor}".strip(), "final"]
    lines = [head, ["round", "0", _round(best), _round(final)]]
    for key in ("val/acc", "test/acc", "opt/gap", "val/loss", "test/loss", "train/loss"):
        if any(key in row for row in (history.initial, best, final)):
            lines.append([key, *(_entry(key, row) for row in (history.initial, best, final))])
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    table = ["  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)) for line in lines]
    return "\n".join([*table, *_costs(final)])


def _costs(final: Row) -> list[str]:
    parts: list[str] = []
    if "comm/up_bytes" in final:
        parts.append(f"up {human_bytes(final['comm/up_bytes'])}")
    if "comm/down_bytes" in final:
        parts.append(f"down {human_bytes(final['comm/down_bytes'])}")
    if "time/total_s" in final:
        parts.append(human_seconds(final["time/total_s"]))
    return ["  ".join(parts)] if parts else []


def _entry(key: str, row: Row) -> str:
    return figure_text(key, row[key]) if key in row else "–"


def figure_text(key: str, value: float) -> str:
    """Write accuracies with four decimals, so that columns of lines align; other figures with four digits."""
    return f"{value:.4f}" if key.endswith("/acc") else f"{value:.4g}"


def _round(row: Row) -> str:
    return str(int(row["round"])) if row else "–"
