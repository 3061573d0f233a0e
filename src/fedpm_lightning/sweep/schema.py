"""W&B's own schema of sweep files, with errors that say what to write instead."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, cast

_PARAMETER = "give `values: [..]`, `value: ..`, `min:` and `max:`, or a `distribution:` with its numbers"


def violations(config: Mapping[str, Any]) -> list[str]:
    """Return what W&B would complain of, one line each; empty for a valid sweep file."""
    from jsonschema import Draft7Validator, FormatChecker

    kinds = FormatChecker(())
    kinds.checks("float")(lambda value: isinstance(value, float))
    kinds.checks("integer")(lambda value: isinstance(value, int))
    schema = json.loads(files("fedpm_lightning.sweep").joinpath("wandb_schema.json").read_text(encoding="utf-8"))
    validator = Draft7Validator(schema, format_checker=kinds)
    found = sorted(validator.iter_errors(cast(Any, config)), key=lambda error: list(map(str, error.absolute_path)))
    return [_message(list(map(str, error.absolute_path)), error) for error in found]


def _message(path: list[str], error: Any) -> str:
    where = ".".join(path) or "the file"
    if path[:1] == ["parameters"] and len(path) == 2:  # none of the twenty kinds of parameter
        return f"{where}: {json.dumps(error.instance)} is no parameter: {_PARAMETER}"
    return f"{where}: {error.message}"
