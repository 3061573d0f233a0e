"""What identifies a run, read from its configuration and its objects, as plain JSON values."""

from __future__ import annotations

import json
import math
import platform
from argparse import Namespace
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any, cast

import torch
from lightning.pytorch import LightningModule, Trainer

from fedpm_lightning.callbacks.base import federation_of
from fedpm_lightning.report.partitions.heterogeneity import heterogeneity_of

Facts = dict[str, Any]


def run_facts(trainer: Trainer, module: LightningModule, config: Mapping[str, Any]) -> Facts:
    """Collect the facts of a run that do not change while it goes on.

    Objects are asked first (they know the defaults), the configuration answers what they don't know.
    """
    data = cast(Any, getattr(trainer, "datamodule", None))
    partition = partition_facts(data)
    seeds = [find_key(config, "seed_everything"), find_key(config, "seed"), getattr(data, "seed", None)]
    return {
        "method": type(federation_of(module).method).__name__,
        "data": data_name(data, config),
        "partition": partition_kind(partition) or partition_kind(config),
        "alpha": _first(find_key(partition, "alpha"), find_key(_section(config, "data"), "alpha")),
        "clients": getattr(data, "num_clients", None) or find_key(config, "num_clients"),
        "local_epochs": find_key(config, "local_epochs"),
        "local_steps": find_key(config, "local_steps"),
        "seed": _first(*seeds),
        "rounds": trainer.max_epochs,
        "partition_hash": _first(partition.get("hash"), partition.get("sha256")),
        "heterogeneity": partition.get("heterogeneity"),
        "versions": versions(),
        "device": device_name(trainer),
        "ranks": trainer.world_size,
        "threads": torch.get_num_threads(),
        # One client after another, or so many at once: it decides last bits.
        "executor": str(federation_of(module).executor),
    }


def _section(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return one branch of the configuration; the method's alpha is not the partition's."""
    found = config.get(key)
    return cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {}


def data_name(data: object, config: Mapping[str, Any]) -> str | None:
    """Name the data set: as its DataModule does, else as the configuration does, else by class."""
    entry = find_key(config, "data")
    given = find_key(cast("Mapping[str, Any]", entry), "name") if isinstance(entry, Mapping) else None
    return getattr(data, "name", None) or given or class_name(entry)


def partition_facts(data: object) -> Facts:
    """Return the partition's report and its heterogeneity as plain values; empty if the data has none."""
    report = getattr(data, "partition_report", None)
    if report is None:
        return {}
    facts = cast(Facts, plain(report.to_dict()))
    return {**facts, "heterogeneity": heterogeneity_of(facts)}


def partition_kind(facts: Mapping[str, Any]) -> str | None:
    """Name the kind of split (iid, dirichlet, ...) from a report or a configuration."""
    split = find_key(facts, "partition")
    inner = find_key(cast("Mapping[str, Any]", split), "kind") if isinstance(split, Mapping) else None
    return str(inner) if inner is not None else class_name(split)


def versions() -> dict[str, str]:
    """Return the versions that decide the numbers of a run."""
    packages = {"fedpm": "fedpm-lightning", "torch": "torch", "lightning": "lightning"}
    found = {name: _version(package) for name, package in packages.items()}
    return {**found, "python": platform.python_version()}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def device_name(trainer: Trainer) -> str:
    """Name the device that trains, with the model of a GPU."""
    device = trainer.strategy.root_device
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)


def find_key(config: Mapping[str, Any], key: str) -> Any:
    """Find the shallowest entry of that name in a nested configuration; None if there is none."""
    level: list[Mapping[str, Any]] = [config]
    while level:
        for mapping in level:
            if mapping.get(key) is not None:
                return mapping[key]
        level = [
            cast("Mapping[str, Any]", value)
            for mapping in level
            for value in mapping.values()
            if isinstance(value, Mapping)
        ]
    return None


def class_name(entry: object) -> str | None:
    """Return the bare class name of a configuration entry `{class_path: a.b.C}` or `C`."""
    path = cast("Mapping[str, Any]", entry).get("class_path") if isinstance(entry, Mapping) else entry
    return None if path is None else str(path).rsplit(".", 1)[-1]


def _first(*values: Any) -> Any:
    """Return the first value that is not None: 0 is a seed like any other."""
    return next((value for value in values if value is not None), None)


def plain(value: object) -> Any:
    """Turn a value into what JSON holds: containers part by part, NaN and infinities to null."""
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in cast("Mapping[Any, object]", value).items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(part) for part in cast("Iterable[object]", value)]
    if hasattr(value, "tolist"):  # tensors, numpy arrays and scalars
        return plain(cast(Any, value).tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    return plain(vars(value)) if isinstance(value, Namespace) else str(value)


def to_json(value: object) -> str:
    """Write a value as strict JSON, indented for reading."""
    return json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
