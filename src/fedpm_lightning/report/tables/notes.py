"""What stands below a table: what labels leave out, which runs do not count and why, what was resumed, what is luck."""

from __future__ import annotations

from fedpm_lightning.report.run import Column, Run
from fedpm_lightning.report.tables.grid import Cell, Grid, column_head
from fedpm_lightning.report.tables.row_labels import short_key, short_value
from fedpm_lightning.report.tables.significance import significance_lines

# What has to be equal for a column to compare methods and nothing else.
_TASK = ("data.", "rounds", "model.net", "model.local_", "model.l2", "model.loss", "model.lr_schedule", "fedpm")
_MOST_KEYS = 4
_NAMED = 2  # runs left out for one reason that are named one by one


def note_lines(grid: Grid) -> list[str]:
    """Return every note, in the order in which a reader asks."""
    return [
        *base_lines(grid),
        *significance_lines(grid),
        *difference_lines(grid),
        *left_out_lines(grid),
        *privacy_lines(grid),
        *marked_lines(grid),
    ]


def base_lines(grid: Grid) -> list[str]:
    """Say what a label means where it names no value."""
    return [f"{name}, where not said otherwise: {base}" for name, base in grid.bases.items()]


def difference_lines(grid: Grid) -> list[str]:
    """Warn of columns whose rows differ in the task, not only in the method, where no label says so."""
    told: dict[str, list[str]] = {}
    for column in grid.columns:
        found = _unlike(grid, column)
        if found:
            told.setdefault(found, []).append(column_head(column))
    return [
        f"not alike, {', '.join(heads)}: rows differ in more than the method: {found}" for found, heads in told.items()
    ]


def _unlike(grid: Grid, column: Column) -> str:
    """Say in which keys of the task a column's rows differ; empty if they do not."""
    values = _task_values(grid, column)
    keys = [key for key, of in values.items() if len(set(of.values())) > 1 and key not in grid.named]
    keys = [key for key in keys if key.split(".init_args.")[0] not in {*keys, *grid.named} - {key}]
    more = f"; and {len(keys) - _MOST_KEYS} more keys" if len(keys) > _MOST_KEYS else ""
    return "; ".join(_unlike_key(key, values[key], keys) for key in keys[:_MOST_KEYS]) + more


def _task_values(grid: Grid, column: Column) -> dict[str, dict[str, str]]:
    """Return key -> row label -> value of the keys that describe the task."""
    found: dict[str, dict[str, str]] = {}
    settings = {label: dict(run.setting) for label, row in grid.rows.items() if (run := _any_run(row, column))}
    keys = sorted({key for entry in settings.values() for key in entry if key.startswith(_TASK)})
    for key in keys:
        found[key] = {label: entry.get(key, "unset") for label, entry in settings.items()}
    return found


def _any_run(row: dict[Column, Cell], column: Column) -> Run | None:
    cell = row.get(column)
    if cell is None:
        return None
    return next(iter([*cell.runs, *(run for run, _ in cell.left_out)]), None)


def _unlike_key(key: str, of: dict[str, str], keys: list[str]) -> str:
    """Write `rounds (20; FedAvg: 5)`: the commonest value, then the rows that depart from it."""
    rows: dict[str, list[str]] = {}
    for label, value in of.items():
        rows.setdefault(value, []).append(label)
    first, *others = sorted(rows.items(), key=lambda item: -len(item[1]))
    parts = [short_value(first[0]), *(f"{_some(labels)}: {short_value(value)}" for value, labels in others)]
    return f"{short_key(key, keys)} ({'; '.join(parts)})"


def _some(names: list[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def left_out_lines(grid: Grid) -> list[str]:
    """List the runs that no mean contains, with the reason; many of a kind in one line.

    Runs that finished without reaching a target are counted in their cell (`2 of 3`) and not listed.
    """
    lines: list[str] = []
    for label, row in grid.rows.items():
        for column, cell in row.items():
            kinds: dict[str, list[Run]] = {}
            for run, reason in cell.left_out:
                if run not in cell.missed or run.state != "finished":
                    kinds.setdefault(reason, []).append(run)
            for reason, runs in kinds.items():
                lines += _left_out(f"{label}, {column_head(column)}", reason, runs)
    return lines


def _left_out(where: str, reason: str, runs: list[Run]) -> list[str]:
    if len(runs) <= _NAMED:
        return [f"left out: {run.path} ({where}, seed {run.seed}): {reason}" for run in runs]
    seeds = ", ".join(str(run.seed) for run in runs)
    return [f"left out: {len(runs)} runs of {where} (seeds {seeds}): {reason}"]


def privacy_lines(grid: Grid) -> list[str]:
    """Say what differential privacy each row's runs had spent when they ended, the largest epsilon of its seeds."""
    lines: list[str] = []
    for label, row in grid.rows.items():
        for column, cell in row.items():
            spent = [(found, run) for run in cell.runs if (found := run.history.value("privacy/epsilon", "final"))]
            if spent:
                most, run = max(spent, key=lambda found: found[0])
                delta = run.history.value("privacy/delta", "final")
                lines.append(f"private: {label}, {column_head(column)}: epsilon {most:.3g} at delta {delta:.3g}")
    return lines


def marked_lines(grid: Grid) -> list[str]:
    """List the runs that count and are not as they should be: resumed, or still going."""
    lines: list[str] = []
    for label, row in grid.rows.items():
        for run in (run for cell in row.values() for run in cell.runs):
            if run.resumed_after:
                after = ", ".join(map(str, run.resumed_after))
                lines.append(f"resumed: {run.path} ({label}, seed {run.seed}): after round {after}{_changed(run)}")
            if run.state != "finished":
                lines.append(f"{run.state}, counted all the same: {run.path} ({label}, seed {run.seed})")
    return sorted(lines)


def _changed(run: Run) -> str:
    """Say what was another when the run went on."""
    changed = [str(line) for resume in run.summary.get("resumes") or [] for line in resume.get("changed") or []]
    return f", with another {'; '.join(changed)}" if changed else ""
