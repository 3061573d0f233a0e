"""How the command line becomes a configuration: short errors, no leaks between methods, run folders as arguments."""

from __future__ import annotations

import difflib
import inspect
import json
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from lightning.pytorch.cli import LightningArgumentParser

from fedpm_lightning import data, methods, schedules
from fedpm_lightning.data.partitions.base import Partition
from fedpm_lightning.methods.base import Method

CLASS_KEYS: dict[str, tuple[Any, type]] = {
    "model.method": (methods, Method),
    "model.lr_schedule": (schedules, schedules.Schedule),
    "data.partition": (data, Partition),
}
"""Keys whose value names a class, with the module that holds the choices and their base class."""


class ShortErrorParser(LightningArgumentParser):
    """A parser whose errors are a few lines instead of the whole usage text."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print the message, and the accepted names where a name was wrong; leave with exit code 2."""
        unknown = re.search(r"Option '([^']+)' is not accepted", message)
        if unknown:
            # The parser of one class: its own arguments are the choices.
            accepted = sorted(action.dest for action in self._actions if action.dest not in {"help", "config"})
            message = f"{_as_typed(unknown[1])} is not accepted here; the keys are {', '.join(accepted)}"
        sys.stderr.write(f"error: {shorten(message)}{self._meant(message)}\nfedpm VERB --help lists every key.\n")
        raise SystemExit(2)

    def _meant(self, message: str) -> str:
        """Return what may have been meant where a key is unknown, as the end of a sentence."""
        unknown = re.match(r"unrecognized arguments: --([\w.]+)", message)
        parsers = [self, *getattr(getattr(self, "_subcommands_action", None), "_name_parser_map", {}).values()]
        keys = {action.dest for parser in parsers for action in parser._actions}
        close = difflib.get_close_matches(unknown[1], keys, n=1, cutoff=0.75) if unknown else []
        return f"; did you mean --{close[0]}?" if close else ""


def _as_typed(option: str) -> str:
    return next((w.partition("=")[0] for w in sys.argv[1:] if w.partition("=")[0].endswith(f".{option}")), option)


def shorten(message: str) -> str:
    """Return jsonargparse's message without the alternatives that nobody meant and the values it repeats."""
    lines = [line for line in message.splitlines() if line.strip()]
    if "Does not validate against any of the Union subtypes" not in message:
        return "\n".join(lines)
    given = re.search(r"Given value: Namespace\(class_path='[\w.]*?(\w+)', init_args=Namespace\((.*)\)\)", message)
    kept = [line for line in lines if not re.match(r"\s*(Does not validate|Subtypes:|Errors:|Given value)", line)]
    told = [line.replace("- ", "", 1).strip() for line in kept if "<class 'NoneType'>" not in line]
    return "\n".join([*told, f"in {given[1]}({given[2]})"] if given else told)


def choices(key: str) -> dict[str, type]:
    """Return class name -> class for one of `CLASS_KEYS`."""
    module, base = CLASS_KEYS[key]
    classes = [value for value in vars(module).values() if inspect.isclass(value) and issubclass(value, base)]
    return {cls.__name__: cls for cls in classes if not inspect.isabstract(cls) and cls is not base}


def complete_classes(words: Sequence[str]) -> list[str]:
    """Spell out a class that is chosen by name on the command line, with all its defaults.

    When a class changes, jsonargparse keeps the arguments that old and new class share. A learning rate of the file
    below would so leak into another method; with every default written out it cannot.

    Raises:
        SystemExit: With code 2 if the name is no known class; the message lists the choices.
    """
    if any(word.partition("=")[0] == "--trainer.max_epochs" for word in words):
        sys.stderr.write("error: trainer.max_epochs is the number of rounds; say --rounds\n")
        raise SystemExit(2)
    result: list[str] = []
    key = ""
    for word in words:
        name, _, value = word.removeprefix("--").partition("=")
        if word.startswith("--") and name in CLASS_KEYS and value:
            result.append(f"--{name}={_spelled_out(name, value)}")
        elif key in CLASS_KEYS:
            result.append(_spelled_out(key, word))
        else:
            result.append(word)
        key = name if word.startswith("--") and not value else ""
    return result


def _spelled_out(key: str, value: str) -> str:
    known = choices(key)
    if value.lower() in {"null", "none"} or value.startswith("{") or Path(value).is_file() or "." in value:
        return value
    by_lower = {name.lower().replace("_", ""): cls for name, cls in known.items()}
    cls = by_lower.get(value.lower().replace("_", ""))
    if cls is None:
        sys.stderr.write(
            f"error: {key}: there is no class {value!r}; choose one of {', '.join(sorted(known))}, "
            "or give the dotted path of your own class\n"
        )
        raise SystemExit(2)
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(cls).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
    return json.dumps({"class_path": public_path(cls), "init_args": defaults})


def public_path(cls: type) -> str:
    """Return the shortest dotted path below the package that leads to a class: what YAML files write."""
    parts = cls.__module__.split(".")
    for depth in range(2, len(parts)):
        module = ".".join(parts[:depth])
        if getattr(import_module(module), cls.__name__, None) is cls:
            return f"{module}.{cls.__name__}"
    return f"{cls.__module__}.{cls.__name__}"


def recall_run(words: Sequence[str]) -> list[str]:
    """Let `--run_dir R` alone stand for R's configuration, and in validate and test for R's best checkpoint.

    Raises:
        SystemExit: With code 2 if R holds no config.yaml (in fit that is a new run).
    """
    words = list(words)
    run_dir = _option(words, "run_dir")
    if run_dir is None and words[0] != "fit" and _option(words, "config") is None and not {"-h", "--help"} & set(words):
        sys.stderr.write(f"error: say which run: fedpm {words[0]} --run_dir runs/NAME\n")
        raise SystemExit(2)
    if run_dir is None:
        return words
    if words[0] == "fit" and not (Path(run_dir) / "config.yaml").is_file():
        return words
    if _option(words, "config") is None:
        config = Path(run_dir) / "config.yaml"
        if not config.is_file():
            sys.stderr.write(f"error: run_dir {run_dir} has no config.yaml; give the folder of a run\n")
            raise SystemExit(2)
        words[1:1] = ["--config", str(config)]
    if words[0] != "fit" and _option(words, "ckpt_path") is None:
        words += ["--ckpt_path", str(checkpoint_of(Path(run_dir)))]
    return words


def checkpoint_of(run_dir: Path) -> Path:
    """Return the run's best checkpoint, else its last one."""
    best = run_dir / "checkpoints" / "best.ckpt"
    return best if best.is_file() else run_dir / "checkpoints" / "last.ckpt"


def _option(words: Sequence[str], name: str) -> str | None:
    for position, word in enumerate(words):
        if word == f"--{name}" and position + 1 < len(words):
            return words[position + 1]
        if word.startswith(f"--{name}="):
            return word.split("=", 1)[1]
    return None
