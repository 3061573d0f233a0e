"""The command line of one point: word for word what a W&B agent builds from the same file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from fedpm_lightning.sweep import SweepError


def command_line(command: Iterable[str], params: Mapping[str, Any]) -> list[str]:
    """Fill a sweep file's command in, as `wandb agent` does.

    Raises:
        SweepError: If it holds a macro that has no meaning here.
    """
    words: list[str] = []
    for word in command:
        macro = word[2:-1] if word.startswith("${") and word.endswith("}") else ""
        if macro == "env":
            words.append("/usr/bin/env")
        elif macro == "args":
            words += [f"--{key}={value}" for key, value in params.items()]
        elif macro == "args_no_equals":
            words += [part for key, value in params.items() for part in (f"--{key}", str(value))]
        elif macro and not macro.startswith("envvar:"):
            raise SweepError(f"command: {word} cannot be used; write the word itself, or ${{env}} and ${{args}}")
        else:
            words.append(re.sub(r"\$\{envvar:([A-Z0-9_]*)\}", lambda m: os.environ.get(m[1], m[1]), word))
    return words


def fedpm_words(command: Iterable[str], params: Mapping[str, Any]) -> list[str]:
    """Return what follows `fedpm` in the command line: the command and its options."""
    words = command_line(command, params)
    return words[words.index("fedpm") + 1 :]
