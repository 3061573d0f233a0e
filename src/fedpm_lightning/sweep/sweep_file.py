"""A sweep file: W&B's YAML, read and checked. One file serves `wandb agent`, `fedpm sweep` and SLURM."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import yaml

from fedpm_lightning.checks import is_mapping
from fedpm_lightning.configuration import ConfigurationError
from fedpm_lightning.configuration.shipped import locate
from fedpm_lightning.sweep import SweepError

ARGS = ("${args}", "${args_no_equals}")
"""The macros for which the command line is the same here and under W&B's agent."""

_OTHER_MACROS = ("${args_no_boolean_flags}", "${args_no_hyphens}", "${args_json}", "${args_json_file}")


@dataclass(frozen=True)
class Metric:
    """What the sweep looks for: a metric of metrics.csv (its last value), or `best/NAME`, `final/NAME`."""

    name: str
    goal: Literal["minimize", "maximize"]


@dataclass(frozen=True)
class SweepFile:
    """A valid sweep file.

    Attributes:
        path: Where it is.
        name: Its `name`, or else the file's.
        method: grid, random or bayes.
        parameters: Parameter -> its W&B entry (`values`, `value`, `min` and `max`, ...).
        command: The words of the command, macros included.
        metric: What decides which point is best; None if the file does not say.
        cap: The largest number of runs, or None.
    """

    path: Path
    name: str
    method: str
    parameters: dict[str, dict[str, Any]]
    command: tuple[str, ...]
    metric: Metric | None
    cap: int | None


def load_sweep(path: str | Path) -> SweepFile:
    """Read a sweep file, by its path or, of one that ships with the package, its name.

    Raises:
        SweepError: If there is no such file, or W&B or `fedpm sweep` could not use it.
    """
    try:
        file = locate("sweeps", path)
    except ConfigurationError as cause:
        raise SweepError(str(cause)) from None
    config = _read(file)
    wrong = violations(config) or _unusable(config)
    if wrong:
        raise SweepError("\n  ".join([f"{file} is no valid sweep file:", *wrong]))
    metric: Mapping[str, Any] | None = config.get("metric")
    return SweepFile(
        path=file,
        name=str(config.get("name") or file.stem),
        method=config["method"],
        parameters=dict(config["parameters"]),
        command=tuple(map(str, config["command"])),
        metric=None if metric is None else Metric(str(metric["name"]), metric.get("goal", "minimize")),
        cap=config.get("run_cap"),
    )


def _read(file: Path) -> Mapping[str, Any]:
    try:
        config = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as cause:
        raise SweepError(f"{file} cannot be read ({cause.strerror}); sweep files are in sweeps/") from None
    except (yaml.YAMLError, UnicodeDecodeError) as cause:
        raise SweepError(f"{file} is not YAML: {cause}") from None
    if not is_mapping(config):
        raise SweepError(f"{file} is empty or a list; a sweep file has the keys method, parameters and command")
    return config


def _unusable(config: Mapping[str, Any]) -> list[str]:
    """Return what W&B's schema lets pass and would fail later."""
    command = [str(word) for word in config.get("command") or []]
    parameters: Mapping[str, Mapping[str, Any]] = config.get("parameters") or {}
    wrong = [] if parameters else ["parameters: there are none"]
    if not command:
        wrong.append('command: is missing; write ["${env}", fedpm, fit, --config, FILE, "${args}"]')
    elif command[:2] != ["${env}", "fedpm"]:
        wrong.append(f'command: begins with {command[:2]}; begin with "${{env}}", fedpm, fit')
    elif command[-1] not in ARGS or sum(command.count(word) for word in ARGS) > 1:
        other = [word for word in command if word in _OTHER_MACROS]
        wrong.append(f'command: end it with "${{args}}"{f", not with {other[0]}" if other else ""}')
    if "config" in parameters:
        wrong.append("parameters.config: write config.NAME, such as config.method: there may be several such files")
    wrong += [f"parameters.{key}: write dotted keys instead of nested parameters" for key in _nested(parameters)]
    wrong += [f"parameters.{key}: {text}" for key, entry in parameters.items() for text in _no_choice(entry)]
    if config["method"] == "bayes" and "metric" not in config:
        wrong.append("metric: bayes needs one; write `metric: {name: val/acc, goal: maximize}`")
    return wrong


def _nested(parameters: Mapping[str, Mapping[str, object]]) -> list[str]:
    return [key for key, entry in parameters.items() if "parameters" in entry]


def _no_choice(entry: Mapping[str, Any]) -> list[str]:
    values: list[object] = entry.get("values", [])
    wrong = [f"{values} names a value twice"] if len({repr(value) for value in values}) < len(values) else []
    shares: list[float] = entry.get("probabilities", [])
    if shares and (len(shares) != len(values) or abs(sum(shares) - 1) > 1e-6):
        wrong.append(f"probabilities {shares} must be one a value and sum to 1")
    if "min" in entry and "max" in entry and not entry["min"] < entry["max"]:
        wrong.append(f"min {entry['min']} is not less than max {entry['max']}")
    return wrong


_PARAMETER = "give `values: [..]`, `value: ..`, `min:` and `max:`, or a `distribution:` with its numbers"


def violations(config: Mapping[str, Any]) -> list[str]:
    """Return what W&B would complain of, one line each; empty for a valid sweep file."""
    from jsonschema import Draft7Validator, FormatChecker

    kinds = FormatChecker(())
    kinds.checks("float")(lambda value: isinstance(value, float))
    kinds.checks("integer")(lambda value: isinstance(value, int))
    schema = json.loads(files("fedpm_lightning.sweep").joinpath("wandb_schema.json").read_text(encoding="utf-8"))
    validator = Draft7Validator(schema, format_checker=kinds)
    found = sorted(validator.iter_errors(dict(config)), key=lambda error: list(map(str, error.absolute_path)))
    return [_message(list(map(str, error.absolute_path)), error) for error in found]


def _message(path: list[str], error: Any) -> str:
    where = ".".join(path) or "the file"
    if path[:1] == ["parameters"] and len(path) == 2:  # none of the twenty kinds of parameter
        return f"{where}: {json.dumps(error.instance)} is no parameter: {_PARAMETER}"
    return f"{where}: {error.message}"
