"""Is every point a command line that `fedpm` accepts, and do its values arrive? Found out before the first run."""

from __future__ import annotations

import contextlib
import difflib
import io
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import yaml

from fedpm_lightning.checks import is_mapping
from fedpm_lightning.configuration.command_line import FILE, python_to_yaml
from fedpm_lightning.configuration.keys import CLASSES
from fedpm_lightning.sweep import SweepError
from fedpm_lightning.sweep.points import Point
from fedpm_lightning.sweep.sweep_file import Metric

if TYPE_CHECKING:
    from jsonargparse import Namespace


def check_points(points: Sequence[Point], metric: Metric | None = None) -> int:
    """Parse points with the real parser, build their method, schedule and partition, and look for every value.

    Of a large grid those are taken that show every choice of files and classes and every value (see `covering`).

    Returns:
        How many points were parsed.

    Raises:
        SweepError: Naming the first point that cannot run, and why.
    """
    chosen = list(covering(points))
    for point in chosen:
        try:
            settings = parsed(point.arguments)
            _build(settings)
            _arrived(point, settings)
            check_metric(metric, settings)
        except (SweepError, ValueError, TypeError, ImportError, AttributeError) as cause:
            shown = ", ".join(f"{key}={value}" for key, value in point.params.items())
            raise SweepError(f"{cause}\nin point {point.index} of {len(points)} ({shown})") from None
    return len(chosen)


def check_metric(metric: Metric | None, settings: Namespace) -> None:
    """Check that a run measures the sweep's metric; a callback may record more than is known here.

    Raises:
        SweepError: With the metrics that there are.
    """
    if metric is None:
        return
    from fedpm_lightning.commands.settings import measured

    known = measured(settings)
    name = metric.name.removeprefix("best/").removeprefix("final/")
    groups = {key.partition("/")[0] for key in (*known, "val/", "test/", "opt/")}
    diagnostics = bool(settings.trainer.callbacks) and name.partition("/")[0] not in groups
    if name not in known and not diagnostics:
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
        hint = f"did you mean {close[0]}? " if close else ""
        raise SweepError(f"metric: no run measures {metric.name}; {hint}there are {', '.join(known)}")


def covering(points: Iterable[Point]) -> Iterable[Point]:
    """Yield the points that show something none before them showed: a choice of files and classes, or a value.

    An argument of a class is shown again with every choice, since another class may not have it.
    """
    seen: set[tuple[Any, ...]] = set()
    for point in points:
        choice = tuple(sorted((k, str(v)) for k, v in point.params.items() if _structural(k, v)))
        shows: set[tuple[Any, ...]] = {choice}
        for key, value in point.params.items():
            shows.add((choice if key.startswith(_ARGUMENTS) else (), key, str(value)))
        if not shows <= seen:
            seen |= shows
            yield point


_ARGUMENTS = tuple(f"{name}." for name in CLASSES)


def _structural(key: str, value: object) -> bool:
    return key.startswith(f"{FILE}.") or key in CLASSES or isinstance(value, dict)


def parsed(arguments: Sequence[str]) -> Any:
    """Parse the arguments of `fedpm` as a run would, without a folder, a seed or a trainer.

    Returns:
        The command's settings.

    Raises:
        SweepError: With the parser's message.
    """
    from fedpm_lightning.commands.lightning_cli import parse

    output = io.StringIO()
    try:
        with contextlib.redirect_stderr(output), contextlib.redirect_stdout(io.StringIO()):
            return parse(arguments)
    except ValueError as error:
        raise SweepError(str(error)) from None
    except SystemExit:
        text = output.getvalue().replace("fedpm fit --help lists the keys", "").strip()
        raise SweepError(text.removeprefix("error: ")) from None


def _build(settings: Namespace) -> None:
    """Build what checks its own arguments and costs nothing: a damping of -1 fails here, not in the third hour."""
    for branch, key in (("model", "method"), ("model", "lr_schedule"), ("data", "partition")):
        spec = settings[branch].get(key)
        _built(spec.as_dict() if hasattr(spec, "as_dict") else spec)


def _built(spec: object) -> object:
    """Make what a `class_path` with `init_args` names, at any depth; other values stay."""
    if not is_mapping(spec) or "class_path" not in spec:
        return spec
    module, _, name = str(spec["class_path"]).rpartition(".")
    arguments = spec.get("init_args") or {}
    return getattr(import_module(module), name)(**{key: _built(value) for key, value in arguments.items()})


def _arrived(point: Point, settings: Namespace) -> None:
    """Compare what the sweep asked for with what the run would use."""
    for key, value in point.params.items():
        if key.startswith(f"{FILE}."):
            continue
        got, expected = lookup(settings, key), yaml.safe_load(python_to_yaml(str(value)))
        if not same(got, expected):
            raise SweepError(f"--{key}={value} does not arrive: the run would use {got!r}")


def lookup(settings: Namespace, key: str) -> Any:
    """Return the value at a dotted key; `init_args` may be left out of it."""
    here: Any = settings
    for part in key.split("."):
        if not hasattr(here, "get"):
            return None
        if here.get(part) is None and here.get("init_args") is not None:
            here = here["init_args"]
        here = here.get(part)
    return here


def same(got: Any, expected: Any) -> bool:
    """Tell whether a parsed value is the one asked for: numbers by value, classes by name, files by content."""
    if hasattr(got, "get") and got.get("class_path") is not None:
        name = expected.get("class_path") if isinstance(expected, dict) else expected
        return bare(got["class_path"]) == bare(name) or str(name).endswith((".yaml", ".json"))
    if isinstance(got, float | int) and not isinstance(expected, bool | None):
        try:
            return float(got) == float(expected)
        except (TypeError, ValueError):
            return False
    if isinstance(got, list | tuple):
        return list(got) == expected
    return got == expected or str(got) == str(expected)


def bare(name: object) -> str:
    """Return a class's bare name, as it is compared: `my.FedAvg`, `FedAvg` and `fed_avg` are one."""
    return str(name).rsplit(".", 1)[-1].lower().replace("_", "")
