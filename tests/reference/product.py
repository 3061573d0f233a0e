"""The product, run in this process on tiny data, and what the reference takes from it as data.

Taken: who holds which samples, every round's cohort and batches, theta_0, the seed. Not taken: anything computed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from lightning.pytorch import Callback, Trainer
from numpy.typing import NDArray

from fedpm_lightning.configuration.keys import CLASSES
from fedpm_lightning.data import FederatedData, QuantitySkew
from fedpm_lightning.models import MLP, Logistic
from fedpm_lightning.schedules import Cosine
from fedpm_lightning.trainer.module import FederatedModule
from fedpm_lightning.types import LocalWork

Array = NDArray[np.float64]
Batch = tuple[Array, NDArray[np.int64]]

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "method"
SEED, ROUNDS, CLIENTS = 3, 3, 7


def convolution(out: int, kernel: tuple[int, int], stride: int) -> torch.nn.Module:
    """Return one convolution of digits, whose flattened output is ten logits."""
    return torch.nn.Sequential(torch.nn.Conv2d(1, out, kernel, stride, padding=1), torch.nn.Flatten())


class Tokens(torch.nn.Module):
    """The tokens of an image: how dark some of its pixels are, in steps (tokens.py)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map images [b, ...] to tokens [b, 12]."""
        return x.flatten(1)[:, 20:32].abs().mul(3).floor().long().clamp(max=6)


def token_network() -> torch.nn.Module:
    """Return an Embedding, a LayerNorm and a Linear layer."""
    parts = (torch.nn.Embedding(7, 3), torch.nn.LayerNorm(3), torch.nn.Flatten(), torch.nn.Linear(36, 10))
    return torch.nn.Sequential(Tokens(), *parts)


def class_of(path: str) -> Any:
    """Import a class by its path."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def complete(spec: Any, key: str) -> dict[str, Any]:
    """Return a class that a file names under a key with all of its arguments: those stated, and its defaults."""
    path = CLASSES[key].default
    if spec is None and not path:
        return {}
    node = spec if isinstance(spec, dict) else {"class_path": spec or path}
    path = node.get("class_path", path)
    parameters = signature(class_of(path)).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    args = {**defaults, **(node.get("init_args") or {})}
    inner = {name: complete(args[name], f"{key}.{name}") for name in args if f"{key}.{name}" in CLASSES}
    return {"class_path": path, "init_args": {**args, **{name: value or None for name, value in inner.items()}}}


def built(spec: Any) -> Any:
    """Make what a `class_path` with `init_args` names, at any depth; an optimizer waits for its parameters."""
    if not isinstance(spec, dict):
        return spec
    if "class_path" not in spec:
        return {key: built(value) for key, value in spec.items()}
    cls, args = class_of(spec["class_path"]), built(spec.get("init_args", {}))
    return partial(cls, **args) if issubclass(cls, torch.optim.Optimizer) else cls(**args)


def flat(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a method's settings by name, those of its preconditioner among them, and the name of its class."""
    settings: dict[str, Any] = {"name": spec.get("class_path", "").rpartition(".")[2]}
    for key, value in spec.get("init_args", {}).items():
        if key == "local_optimizer" and value:
            settings[key] = flat(value)  # its lr and weight_decay are not the method's
        elif isinstance(value, dict):
            inner = flat(value)
            settings |= {key: inner.pop("name").lower(), **inner}
        else:
            settings[key] = value
    return settings


def changed(spec: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return the specification with other values, wherever in it their names stand; a class by its bare name."""
    own = spec.get("init_args", {})
    args = {k: changed(v, changes) if isinstance(v, dict) else changes.get(k, v) for k, v in own.items()}
    for key in changes.keys() & {k for k, v in own.items() if isinstance(v, dict)}:
        module = args[key]["class_path"].rpartition(".")[0]
        args[key] = {**args[key], "class_path": f"{module}.{changes[key].capitalize()}"}
    return {**spec, "init_args": args} if spec else {}


@dataclass(frozen=True)
class Task:
    """Data and network of a run: `digits` (ten classes), or the path of a binary LIBSVM file."""

    data: str
    network: str
    batch_size: int | None
    l2: float = 0.0

    def net(self) -> torch.nn.Module:
        """Return the network, drawn from a fixed seed."""
        torch.manual_seed(1)
        return {
            "mlp": lambda: MLP(64, [12, 8], 10),
            "conv": lambda: convolution(1, (9, 6), stride=1),
            "wide conv": lambda: convolution(5, (5, 10), stride=3),
            "logistic": lambda: Logistic(6, 1, bias=False, zero_init=True),
            "two logits": lambda: Logistic(6, 2, zero_init=False),
            "small mlp": lambda: MLP(6, [3], 2),
            "tokens": token_network,
        }[self.network]()

    def datamodule(self) -> FederatedData:
        """Return unequal clients, of which a part takes part in a round."""
        return _data(self.data, self.batch_size)


@cache
def _data(data: str, batch_size: int | None) -> FederatedData:
    options: dict[str, Any] = {"name": data, "limit_train": 140, "limit_test": 20}
    if data != "digits":
        options = {"name": "libsvm", "source": data, "width": 6}
    split = {"num_clients": CLIENTS, "participation": 0.6, "partition": QuantitySkew(2.0, min_samples=9)}
    module = FederatedData(**options, **split, batch_size=batch_size, val_fraction=0.0, seed=SEED)
    torch.set_default_dtype(torch.float64)  # inputs have the precision of the runs, 64-true, from the beginning
    try:
        module.setup()
    finally:
        torch.set_default_dtype(torch.float32)
    return module


@dataclass
class Data:
    """What the reference is given."""

    module: FederatedData
    work: LocalWork

    def cohort(self, round: int) -> list[int]:
        """Return S_t."""
        return self.module.cohort(round).ids

    def size(self, client: int) -> int:
        """Return n_i."""
        return self.module.client(client).num_samples

    def batches(self, client: int, round: int, work: LocalWork | None = None) -> Iterator[Batch]:
        """Yield the training batches of a round."""
        yield from self._numpy(self.module.client(client).batches(round, work or self.work))

    def everything(self, client: int) -> Batch:
        """Return the local set, in order."""
        (whole,) = self._numpy(self.module.client(client).everything(10_000))
        return whole

    def _numpy(self, batches: Iterator[Any]) -> Iterator[Batch]:
        yield from ((x.double().numpy(), y.numpy()) for x, y in batches)


@dataclass(frozen=True)
class Settings:
    """One run: a method's file, changes of its settings, the local work."""

    task: Task
    file: str
    changes: dict[str, Any]

    @property
    def config(self) -> dict[str, Any]:
        """The `model` part of the file, changed."""
        model = yaml.safe_load((CONFIGS / f"{self.file}.yaml").read_text())["model"]
        changes = dict(self.changes)
        for key in ("weighting", "server_optimizer", "local_steps", "local_epochs"):
            if key in changes:
                model[key] = changes.pop(key)
        parts = {key: changed(complete(model[key], f"model.{key}"), changes) for key in ("method", "server_optimizer")}
        unknown = changes.keys() - flat(parts["method"]).keys() - flat(parts["server_optimizer"]).keys()
        assert not unknown, f"{self.file} has no {unknown}"
        return {**model, **parts}

    @property
    def work(self) -> LocalWork:
        """E epochs, 2 where the file does not say, or K steps."""
        steps = self.config.get("local_steps")
        return LocalWork(self.config.get("local_epochs", 2) if steps is None else None, steps)


class Record(Callback):
    """theta after every round, in the network's order; how the cohort was trained, and how it could be."""

    def __init__(self) -> None:
        self.thetas: list[Array] = []
        self.executor = self.stackable = ""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Keep theta."""
        federation = pl_module.federation
        self.executor, self.stackable = federation.executor.name, federation.method.stackable
        self.thetas.append(vector(pl_module.net))


def vector(net: torch.nn.Module) -> Array:
    """Return all parameters as one vector."""
    return torch.cat([p.detach().double().flatten() for p in net.parameters()]).numpy().copy()


def trained(settings: Settings, executor: str) -> Record:
    """Run the product; return theta after each round."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    config, record = settings.config, Record()
    server = config["server_optimizer"]
    options: dict[str, Any] = {"local_epochs": settings.work.epochs, "local_steps": settings.work.steps}
    if server:
        options["server_optimizer"] = built(server)
    module = FederatedModule(
        settings.task.net(),
        built(config["method"]),
        lr_schedule=Cosine(),
        weighting=config["weighting"],
        l2=settings.task.l2,
        executor=executor,
        clients_per_chunk=3 if executor == "vectorized" else None,
        seed=SEED,
        **options,
    )
    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = Trainer(
        max_epochs=ROUNDS, accelerator="cpu", precision="64-true", callbacks=[record], limit_val_batches=0,
        **dict.fromkeys(off, False),
    )  # fmt: skip
    trainer.fit(module, datamodule=settings.task.datamodule())
    return record
