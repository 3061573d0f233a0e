"""The points of a sweep: parameter values, the command that runs them, and a name by their hash."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path, PurePath
from typing import Any

from fedpm_lightning.configuration import ConfigurationError
from fedpm_lightning.configuration.command_line import FILE, options, ordered_options
from fedpm_lightning.configuration.keys import Effect, effect
from fedpm_lightning.configuration.shipped import locate
from fedpm_lightning.configuration.yaml_text import read_file
from fedpm_lightning.sweep import SweepError
from fedpm_lightning.sweep.draws import draw
from fedpm_lightning.sweep.sweep_file import SweepFile

SEED = "seed_everything"
_LONGEST_NAME = 64


@dataclass(frozen=True)
class Point:
    """One run of a sweep.

    Attributes:
        index: Its place in the sweep's folder, which a job array counts by.
        name: A readable part and the hash of what it runs; the name of its run's folder.
        params: The values that the sweep chose.
        arguments: What follows `fedpm` on its command line, without the run's folder.
    """

    index: int
    name: str
    params: dict[str, Any]
    arguments: list[str]

    def to_json(self) -> str:
        """Write the point as one line."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, line: str) -> Point:
        """Read a line of `to_json`; older sweeps call the arguments `words`."""
        fields = json.loads(line)
        return cls(fields["index"], fields["name"], fields["params"], fields.get("arguments") or fields["words"])


def make_points(sweep: SweepFile, extra: Sequence[str] = (), number: int | None = None, seed: int = 0) -> list[Point]:
    """Lay out a sweep's points.

    Args:
        sweep: The sweep file; its method is grid or random.
        extra: Further arguments for every point, after those of the sweep.
        number: How many: the first of a grid, or random ones; by default the file's run_cap.
        seed: Decides the random points.

    Raises:
        SweepError: If random points are asked for without a number, or a grid has a parameter without values.
    """
    _no_overlap(sweep, extra)
    number = sweep.cap if number is None else number
    chosen = _random(sweep, number, seed) if sweep.method == "random" else _grid(sweep)[:number]
    varied = [key for key in sweep.parameters if len({repr(params[key]) for params in chosen}) > 1]
    points: dict[str, Point] = {}
    for params in chosen:
        arguments = [*fedpm_arguments(sweep.command, params), *extra]
        name = f"{readable(params, varied)}-{identity(arguments, params)}".lstrip("-")
        points.setdefault(name, Point(len(points), name, params, arguments))
    return list(points.values())


def _grid(sweep: SweepFile) -> list[dict[str, Any]]:
    keys = sorted(sweep.parameters)  # W&B's order
    return [dict(zip(keys, values, strict=True)) for values in product(*(_values(sweep, key) for key in keys))]


def _values(sweep: SweepFile, key: str) -> list[Any]:
    entry = sweep.parameters[key]
    if "value" in entry:
        return [entry["value"]]
    if "values" not in entry:
        raise SweepError(f"{key}: a grid needs `values`, not {entry}; or say `--method random --points N`")
    return list(entry["values"])


def _random(sweep: SweepFile, number: int | None, seed: int) -> list[dict[str, Any]]:
    if number is None:
        raise SweepError(f"{sweep.path}: say how many random points: --points N, or `run_cap: N` in the file")
    keys = sorted(sweep.parameters)
    return [{key: draw(key, sweep.parameters[key], seed, index) for key in keys} for index in range(number)]


def _no_overlap(sweep: SweepFile, extra: Sequence[str]) -> None:
    both = {option.name for option in options(extra)} & set(sweep.parameters)
    if both:
        raise SweepError(f"--{min(both)} is a parameter of {sweep.path}: every point would get the same value")


def readable(params: Mapping[str, object], keys: Sequence[str]) -> str:
    """Write the values of some parameters shortly: `fedpm-alpha0.1-s0`."""
    parts = [_short(key, params[key]) for key in keys]
    text = re.sub(r"[^A-Za-z0-9.+-]+", "_", "-".join(parts))
    return text[:_LONGEST_NAME].rstrip("-._")


def _short(key: str, value: object) -> str:
    if key.startswith(f"{FILE}."):
        return Path(str(value)).stem
    shown = f"{value:.4g}" if isinstance(value, float) else str(value)
    return f"s{shown}" if key == SEED else f"{key.rsplit('.', 1)[-1]}{shown}"


def identity(arguments: Sequence[str], chosen: Iterable[str] = ()) -> str:
    """Hash what decides a run's figures: the options, and what is IN the files, so that a changed file is a new run.

    Args:
        arguments: The command and its options.
        chosen: Options that count whatever they decide: those that the sweep varies.

    Raises:
        SweepError: If a file or an option cannot be read.
    """
    try:
        given = ordered_options(arguments[1:])
        layers = [read_file(locate("configs", value)) for name, value in given if name == FILE]
    except ConfigurationError as cause:
        raise SweepError(str(cause)) from None
    counted = {name: value for name, value in given if effect(name) is Effect.FIGURES or name in set(chosen)}
    counted.pop(FILE, None)
    if "data.source" in counted:  # the same data may lie in another folder; another name may be other data
        counted["data.source"] = PurePath(counted["data.source"]).name
    text = json.dumps([arguments[0], layers, counted], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def command_line(command: Iterable[str], params: Mapping[str, object]) -> list[str]:
    """Fill a sweep file's command in, as `wandb agent` does.

    Raises:
        SweepError: If it holds a macro that has no meaning here.
    """
    arguments: list[str] = []
    for word in command:
        macro = word[2:-1] if word.startswith("${") and word.endswith("}") else ""
        if macro == "env":
            arguments.append("/usr/bin/env")
        elif macro == "args":
            arguments += [f"--{key}={value}" for key, value in params.items()]
        elif macro == "args_no_equals":
            arguments += [part for key, value in params.items() for part in (f"--{key}", str(value))]
        elif macro and not macro.startswith("envvar:"):
            raise SweepError(f"command: {word} cannot be used; write the word itself, or ${{env}} and ${{args}}")
        else:
            arguments.append(re.sub(r"\$\{envvar:([A-Z0-9_]*)\}", lambda m: os.environ.get(m[1], m[1]), word))
    return arguments


def fedpm_arguments(command: Iterable[str], params: Mapping[str, object]) -> list[str]:
    """Return what follows `fedpm` in the command line: the command and its options."""
    arguments = command_line(command, params)
    return arguments[arguments.index("fedpm") + 1 :]
