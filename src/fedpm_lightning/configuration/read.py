"""The command line of `fedpm fit` (validate, test) as one mapping, its names checked, before torch is loaded."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpm_lightning.checks import is_dict, is_list, is_mapping
from fedpm_lightning.configuration import ConfigurationError
from fedpm_lightning.configuration.class_sources import arguments, choices
from fedpm_lightning.configuration.command_line import FILE, ordered_options, value_of
from fedpm_lightning.configuration.compose import Composition, get_key
from fedpm_lightning.configuration.experiment_keys import DEFAULTS, EXPERIMENT_KEYS, LIGHTNING_KEYS
from fedpm_lightning.configuration.keys import BRANCHES, CLASSES
from fedpm_lightning.configuration.shipped import locate
from fedpm_lightning.configuration.yaml_text import read_file


@dataclass(frozen=True)
class Configuration:
    """What a command line says.

    Attributes:
        command: fit, validate or test.
        composed: The mapping, and where each value came from.
        print_options: Options that ask for something to be printed: print_config.
    """

    command: str
    composed: Composition
    print_options: tuple[tuple[str, str], ...] = ()

    @property
    def values(self) -> dict[str, Any]:
        """The nested mapping."""
        return self.composed.values


def read(argv: Sequence[str]) -> Configuration:
    """Compose the layers of a command line: the defaults, files, options.

    Args:
        argv: The command and its options.

    Raises:
        ConfigurationError: If a file, a key or the name of a class is wrong.
    """
    command, options = argv[0], list(argv[1:])
    pairs = ordered_options(options)
    print_options = tuple(pair for pair in pairs if pair[0] == "print_config")
    composed = Composition()
    composed.add_layer(DEFAULTS, "the defaults")
    for file in _recorded_config(command, options):
        composed.add_layer(read_file(file), str(file))
    for name, value in pairs:
        if name == FILE:
            composed.add_layer(read_file(locate("configs", value)), value)
        elif (name, value) not in print_options:
            composed.add_option(name, value)
    composed.values.pop(FILE, None)
    _find_checkpoint(command, composed.values)
    _fill_in(composed.values)
    check_names(composed)
    return Configuration(command, composed, print_options)


def _recorded_config(command: str, options: Sequence[str]) -> list[Path]:
    """Read R's own configuration if `--run_dir R` is the only option.

    Raises:
        ConfigurationError: In validate and test, if no run is named or R holds no config.yaml (in fit: a new run).
    """
    run_dir, config = value_of(options, "run_dir"), any(option.startswith(("--config", "-c")) for option in options)
    if run_dir is not None and not run_dir.strip():
        raise ConfigurationError("run_dir is empty; leave it out for a new folder, or name one: --run_dir runs/NAME")
    if config or (run_dir is None and command == "fit"):
        return []
    if run_dir is None:
        raise ConfigurationError(f"say which run: fedpm {command} --run_dir runs/NAME")
    file = Path(run_dir) / "config.yaml"
    if file.is_file():
        return [file]
    if command == "fit":
        return []
    raise ConfigurationError(f"run_dir {run_dir} has no config.yaml; give the folder of a run")


def _find_checkpoint(command: str, values: dict[str, Any]) -> None:
    """In validate and test, take the run's best checkpoint, else its last one, unless one is named."""
    run_dir = values.get("run_dir")
    if command != "fit" and run_dir is not None and values.get("ckpt_path") is None:
        folder = Path(str(run_dir)) / "checkpoints"
        best = folder / "best.ckpt"
        values["ckpt_path"] = str(best if best.is_file() else folder / "last.ckpt")


def _fill_in(values: dict[str, Any]) -> None:
    """Replace null by the default class of an argument, so that config.yaml shows its arguments."""
    for key, spec in CLASSES.items():
        outer, _, name = key.rpartition(".")
        found = get_key(values, outer) if spec.default else None
        node = found if is_dict(found) else {}
        path = node.get("class_path")
        if isinstance(path, str) and name in (arguments(path) or ()) and get_key(node, f"init_args.{name}") is None:
            node.setdefault("init_args", {})[name] = {"class_path": spec.default}


def check_names(composed: Composition) -> None:
    """Check every key against the signature that takes it.

    Raises:
        ConfigurationError: Naming the key, where it stands, and the keys that there are.
    """
    own = (*EXPERIMENT_KEYS, *LIGHTNING_KEYS, *BRANCHES)
    for key, value in composed.values.items():
        if key not in own:
            raise _unknown(composed, key, (*own, FILE), "fedpm")
        if key in BRANCHES:
            _check_branch(composed, key, value)


def _check_branch(composed: Composition, branch: str, values: object) -> None:
    if not is_mapping(values):
        raise ConfigurationError(
            f"{branch} is {values!r}; it has keys, such as {branch}.{(arguments(BRANCHES[branch]) or ('',))[0]}"
        )
    known = arguments(BRANCHES[branch])
    for name, value in values.items():
        key = f"{branch}.{name}"
        if known is not None and name not in known:
            raise _unknown(composed, key, [f"{branch}.{other}" for other in known], branch)
        if key in CLASSES:
            for one in value if is_list(value) else [value]:
                _check_class(composed, key, one)


def _check_class(composed: Composition, key: str, node: object) -> None:
    """Check the arguments of a class, and of the classes among them."""
    if not is_mapping(node):
        return
    path = node.get("class_path")
    given = node.get("init_args")
    known = arguments(path) if isinstance(path, str) else None
    for name, value in given.items() if is_mapping(given) else ():
        if known is not None and name not in known:
            raise _not_accepted(composed, f"{key}.{name}", str(path).rpartition(".")[2], known)
        _check_class(composed, f"{key}.{name}", value)


def _not_accepted(composed: Composition, key: str, owner: str, known: Sequence[str]) -> ConfigurationError:
    branch, _, name = key.rpartition(".")
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    hint = f"; did you mean {close[0]}?" if close else ""
    for holder in known:
        if name in _arguments_below(f"{branch}.{holder}"):
            hint = f"; it is an argument of {branch}.{holder}: say {branch}.{holder}.{name}"
    return ConfigurationError(
        f"{_where(composed, key)}{key} is not accepted by {owner}; its keys are {', '.join(known) or 'none'}{hint}"
    )


def _arguments_below(key: str) -> set[str]:
    """Return the arguments of all classes that a key may name; none where it names no class of a known base."""
    spec = CLASSES.get(key)
    if spec is None or not spec.base:
        return set()
    return {name for path in choices(spec.modules, spec.base).values() for name in arguments(path) or ()}


def _unknown(composed: Composition, key: str, known: Sequence[str], owner: str) -> ConfigurationError:
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    hint = f"did you mean --{close[0]}?" if close else f"fedpm fit --help lists the keys of {owner}"
    return ConfigurationError(f"{_where(composed, key)}--{key} is no key; {hint}")


def _where(composed: Composition, key: str) -> str:
    origin = composed.origin(key)
    return "" if origin is None or origin.startswith("--") else f"{origin}: "
