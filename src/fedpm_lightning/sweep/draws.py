"""Random points of a search space: W&B's distributions, drawn as a function of (seed, index, parameter)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from fedpm_lightning.sweep import SweepError

Entry = Mapping[str, Any]


def draw(parameter: str, entry: Entry, seed: int, index: int) -> Any:
    """Draw one parameter of random point `index`; the same point again, however many others there are.

    Raises:
        SweepError: If the distribution is none of those below.
    """
    random = Random(f"{seed}/{index}/{parameter}")
    kind = entry.get("distribution") or _kind(entry)
    if kind not in DRAWS:
        raise SweepError(f"{parameter}: {kind} cannot be drawn here; choose one of {', '.join(DRAWS)}, or use W&B")
    return DRAWS[kind](entry, random)


def _kind(entry: Entry) -> str:
    if "value" in entry:
        return "constant"
    if "values" in entry:
        return "categorical"
    return "int_uniform" if isinstance(entry["min"], int) and isinstance(entry["max"], int) else "uniform"


def _categorical(entry: Entry, random: Random) -> Any:
    return random.choices(entry["values"], entry.get("probabilities"))[0]


def _log_uniform(entry: Entry, random: Random) -> float:
    return math.exp(random.uniform(math.log(entry["min"]), math.log(entry["max"])))


def _quantised(value: float, entry: Entry) -> float:
    q = entry.get("q", 1.0)
    rounded = round(value / q) * q
    return int(rounded) if float(q).is_integer() else rounded


DRAWS: dict[str, Callable[[Entry, Random], Any]] = {
    "constant": lambda entry, random: entry["value"],
    "categorical": _categorical,
    "categorical_w_probabilities": _categorical,
    "int_uniform": lambda entry, random: random.randint(entry["min"], entry["max"]),
    "uniform": lambda entry, random: random.uniform(entry["min"], entry["max"]),
    "q_uniform": lambda entry, random: _quantised(random.uniform(entry["min"], entry["max"]), entry),
    "log_uniform_values": _log_uniform,
    "q_log_uniform_values": lambda entry, random: _quantised(_log_uniform(entry, random), entry),
    "normal": lambda entry, random: random.gauss(entry.get("mu", 0.0), entry.get("sigma", 1.0)),
}
