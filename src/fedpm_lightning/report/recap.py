"""The figures of a round in a line, and those of a run in a small table."""

from __future__ import annotations

from fedpm_lightning.report.history import History, Row

_SHOWN = {"val/acc": "val/acc", "test/acc": "test/acc", "opt/gap": "gap"}


def figures(row: Row) -> list[str]:
    """Return what a round's line shows: accuracies or the gap, the training loss, the seconds."""
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


def human_bytes(count: float) -> str:
    """Write a number of bytes with the unit that leaves at most four digits before the point."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.4g} {unit}"
        count /= 1000
    return f"{count:.4g} TB"


def human_seconds(seconds: float) -> str:
    """Write a duration as `1 h 02 min`, `3 min 05 s` or `0.8 s`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


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
