"""The setting of a run: all of its configuration except the seed, the folder and what changes no figure.

Only runs of one setting are ever averaged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, TypeAlias, cast

Setting: TypeAlias = tuple[tuple[str, str], ...]
"""Dotted configuration key -> value as text, sorted: hashable, comparable."""

# Keys, and whole branches, that name a run or its surroundings but do not decide its figures.
_NO_SETTING = {
    "seed_everything", "seed", "run_dir", "experiment", "label", "name", "config", "ckpt_path",
    "weights_only", "resume", "checkpoint_every", "overwrite", "tags", "wandb", "progress",
    "num_workers", "root", "source", "max_epochs", "grace_s", "data_dir", "download",
    # These change no more than last bits; summary.json records what ran.
    "executor", "clients_per_chunk", "reduce", "channels_last", "compile", "client_memory_mib",
}  # fmt: skip
_NO_SETTING_BRANCHES = (
    "trainer.logger", "trainer.default_root_dir", "trainer.enable_", "trainer.log_every_n_steps",
    "trainer.max_time", "trainer.profiler", "trainer.accelerator", "trainer.devices",
    "trainer.num_sanity_val_steps",
)  # fmt: skip
_CALLBACKS = "trainer.callbacks"
_OBSERVERS = {
    "ClientAccuracy", "ClientDrift", "Communication", "ConditionNumber", "Damping", "PreconditionerDrift",
    "RoundProgress", "RunFiles", "TimeShares", "Timing", "WandbRun",
}  # fmt: skip
"""Callbacks that only look: a run with them has the figures of one without."""

# With these names `data.source` only says where the same data lies; with any other it says which data they are.
_KNOWN_DATA = {"digits", "cifar10", "cifar100", "mnist", "fashion_mnist", "svhn", "a9a", "w8a"}


def setting_of(config: Mapping[str, Any], version: object) -> Setting:
    """Return all that identifies a run except its seed.

    Args:
        config: The complete nested configuration.
        version: The version of this package that ran it.
    """
    flat = flatten(config)
    # `model.net.class_path` is the value of `model.net`, so that a class and null differ in one key, not in two.
    entries = {key.removesuffix(".class_path"): value for key, value in flat.items() if _decides(key)}
    entries["fedpm"] = version
    entries[_CALLBACKS] = _acting(entries.get(_CALLBACKS))
    source = flat.get("data.source")
    if source is not None and str(flat.get("data.name", "digits")) not in _KNOWN_DATA:
        entries["data.source"] = PurePath(str(source)).name  # the folder differs from machine to machine
    return tuple(sorted((key, str(value)) for key, value in entries.items()))


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turn a nested mapping into dotted keys; lists stay whole."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        dotted = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat |= flatten(cast("Mapping[str, Any]", value), f"{dotted}.")
        else:
            flat[dotted] = value
    return flat


def differing_keys(settings: Sequence[Setting]) -> list[str]:
    """Return the keys that tell settings apart, as few as say it all.

    A branch that only some settings have (the arguments of another class) is left out where the keys that all of them
    have suffice, and so are the arguments below a class that differs.
    """
    entries = [dict(setting) for setting in settings]
    every = sorted({key for entry in entries for key in entry})
    differing = [key for key in every if len({entry.get(key) for entry in entries}) > 1]
    shared = [key for key in differing if all(key in entry for entry in entries)]
    keys = shared if _tell_apart(entries, shared) else differing
    for branch in list(keys):
        fewer = [key for key in keys if not key.startswith(f"{branch}.init_args.")]
        keys = fewer if _tell_apart(entries, fewer) else keys
    return keys


def _tell_apart(entries: Sequence[Mapping[str, str]], keys: Sequence[str]) -> bool:
    return len({tuple(entry.get(key) for key in keys) for entry in entries}) == len(entries)


def _acting(callbacks: Any) -> list[Any] | None:
    """Return the callbacks that may change a figure; None, as where none are given, if there are none."""
    given = cast("list[Any]", callbacks if isinstance(callbacks, list) else [callbacks] if callbacks else [])
    paths = [entry.get("class_path") if isinstance(entry, dict) else entry for entry in given]
    kept = [e for e, path in zip(given, paths, strict=True) if str(path).rsplit(".", 1)[-1] not in _OBSERVERS]
    return kept or None


def _decides(key: str) -> bool:
    """Tell whether a dotted key can change a figure."""
    if key.startswith(_NO_SETTING_BRANCHES):
        return False
    # `data.name` is the data set and `model.method.name` may be anything: only a bare name names the run.
    last = key.rsplit(".", 1)[-1]
    return last not in _NO_SETTING or (last in {"name", "label"} and "." in key)
