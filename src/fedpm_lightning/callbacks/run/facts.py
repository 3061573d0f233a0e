"""The facts that identify a run, read from its objects, and values as strict JSON."""

from __future__ import annotations

import json
import math
import platform
from argparse import Namespace
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, cast

import torch
from lightning.pytorch import LightningModule, Trainer

from fedpm_lightning.callbacks.base import federation_of
from fedpm_lightning.callbacks.trainer_access import data_of
from fedpm_lightning.checks import is_mapping, is_sequence
from fedpm_lightning.report.partitions.heterogeneity import heterogeneity_of
from fedpm_lightning.report.records import Partition
from fedpm_lightning.version import own_commit


@dataclass(frozen=True)
class RunFacts:
    """What identifies a run besides its configuration, and stays fixed during it.

    Attributes:
        method: The method's class.
        declared: What the class says of its taxonomy and its look, for tables and figures.
        data: The data set's name.
        partition: The kind of split (Dirichlet, IID, ...); None where the data report none.
        alpha: Its alpha, where it has one.
        clients: N.
        local_epochs: E, or None.
        local_steps: K, or None.
        seed: The experiment's.
        rounds: Rounds asked for.
        partition_hash: Of who holds which sample.
        heterogeneity: How unlike the clients are.
        inputs: What the network gets: shape, dtype and, of images, the mean and deviation of their normalisation.
        versions: That decide the numbers of a run.
        commit: Of this package, as `fedpm --version` says it.
        device: That trains.
        ranks: Processes.
        threads: Of an operation on the CPU.
        executor: One client after another, or so many at once: it decides last bits.
    """

    method: str
    declared: dict[str, Any]
    data: str
    partition: str | None
    alpha: float | None
    clients: int
    local_epochs: int | None
    local_steps: int | None
    seed: int
    rounds: int | None
    partition_hash: str | None
    heterogeneity: dict[str, float] | None
    inputs: dict[str, Any] | None
    versions: dict[str, str]
    commit: str
    device: str
    ranks: int
    threads: int
    executor: str

    @classmethod
    def of(cls, trainer: Trainer, module: LightningModule) -> RunFacts:
        """Read them from the objects of a run."""
        federation, data = federation_of(module), data_of(trainer)
        method = federation.method
        report = partition_facts(data)
        split = report.get("partition")
        return cls(
            method=type(method).__name__,
            declared={"taxonomy": to_plain(method.taxonomy), "look": to_plain(method.look)},
            data=data.name,
            partition=split and split["kind"],
            alpha=split and split["arguments"].get("alpha"),
            clients=data.num_clients,
            local_epochs=federation.work.epochs,
            local_steps=federation.work.steps,
            seed=federation.seed,
            rounds=trainer.max_epochs,
            partition_hash=report.get("sha256"),
            heterogeneity=report.get("heterogeneity"),
            inputs=getattr(data, "input_facts", None),
            versions=versions(),
            commit=own_commit(),
            device=device_name(trainer),
            ranks=trainer.world_size,
            threads=torch.get_num_threads(),
            executor=str(federation.executor),
        )


def partition_facts(data: object) -> Partition:
    """Return the partition's report and its heterogeneity as plain values; empty if the data has none."""
    report = getattr(data, "partition_report", None)
    if report is None:
        return {}
    facts = cast(Partition, to_plain(report.to_dict()))
    return {**facts, "heterogeneity": heterogeneity_of(facts)}


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


def to_plain(value: object) -> Any:
    """Turn a value into what JSON holds: containers part by part, NaN and infinities to null."""
    if is_mapping(value):
        return {str(key): to_plain(part) for key, part in value.items()}
    if is_sequence(value) or isinstance(value, set | frozenset):
        return [to_plain(part) for part in value]
    if (tolist := getattr(value, "tolist", None)) is not None:  # tensors, numpy arrays and scalars
        return to_plain(tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    return to_plain(vars(value)) if isinstance(value, Namespace) else str(value)


def to_json(value: object) -> str:
    """Write a value as strict JSON, indented for reading."""
    return json.dumps(to_plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
