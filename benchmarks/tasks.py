"""The two tasks of the benchmarks, written once: the bare loop and `fedpm fit` are both built from a `Task`.

cnn        CIFAR-10's shape, 10 clients, the two-convolution CNN, batch 64: steps that cost something
overhead   logistic regression 60 -> 10, 100 clients of 20 samples, 10 a round, batch 10: steps that cost nothing
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import nn

from fedpm_lightning import models
from fedpm_lightning.data import IID, ArraySet, Augment, FederatedData, Normalise

REPO = Path(__file__).resolve().parent.parent
SEED = 0
METHOD_FILES = {"FedAvg": "fedavg", "LocalNewton": "local_newton", "FedPM": "fedpm", "FedPM-fast": "fedpm_fast"}
SETTINGS = {"bf16": ["--trainer.precision=bf16-mixed"], "stacked": ["--model.executor=vectorized"]}
"""What may stand behind a method's name among the contestants, as words of the command line."""


def noisy_pictures(n: int, test: int, shape: tuple[int, int, int]) -> ArraySet:
    """Return n + test noisy copies of ten random pictures [c, h, w], so that there is something to learn."""
    generator = torch.Generator().manual_seed(SEED)
    pictures = torch.randint(0, 128, (10, *shape), dtype=torch.uint8, generator=generator)
    y = torch.arange(n + test) % 10
    x = torch.randint(0, 128, (n + test, *shape), dtype=torch.uint8, generator=generator).add_(pictures[y])
    normalise = Normalise(shape[0] * (0.5,), shape[0] * (0.25,))
    return ArraySet(x[:n], y[:n], x[n:], y[n:], 10, normalise=normalise, augment=Augment())


def made_up_images() -> ArraySet:
    """Return 10,000 + 1,000 pictures of CIFAR-10's shape."""
    return noisy_pictures(10_000, 1_000, (3, 32, 32))


def made_up_patches() -> ArraySet:
    """Return 640 + 200 small grey pictures."""
    return noisy_pictures(640, 200, (1, 16, 16))


def made_up_vectors() -> ArraySet:
    """Return 2,000 + 500 normal vectors of 60 numbers, labelled by a random linear map."""
    generator = torch.Generator().manual_seed(SEED)
    x, W = torch.randn(2_500, 60, generator=generator), torch.randn(60, 10, generator=generator)
    y = (x @ W).argmax(1)
    return ArraySet(x[:2_000], y[:2_000], x[2_000:], y[2_000:], 10)


def made_up_rows(source: str) -> ArraySet:
    """Return normal vectors labelled by a random linear map; `source` says how many of how many numbers: "2000x60"."""
    n, width = map(int, source.split("x"))
    generator = torch.Generator().manual_seed(SEED)
    x, W = torch.randn(n + 500, width, generator=generator), torch.randn(width, 10, generator=generator)
    y = (x @ W).argmax(1)
    return ArraySet(x[:n], y[:n], x[n:], y[n:], 10)


@dataclass(frozen=True)
class Task:
    """One experiment, as plain values.

    Attributes:
        net: A class of fedpm_lightning.models.
        net_args: Its arguments.
        data: Arguments of FederatedData, without partition (IID) and seed.
        rounds: Communication rounds; the first one warms up and is not counted.
        local_epochs: E.
        lr: Learning rate of every method.
        options: Further words for `fedpm fit`.
    """

    net: str
    net_args: dict[str, Any]
    data: dict[str, Any] = field(default_factory=dict)
    rounds: int = 3
    local_epochs: int = 1
    lr: float = 0.05
    options: tuple[str, ...] = ()

    def make_net(self) -> nn.Module:
        """Return the network as `fedpm fit` initialises it."""
        torch.manual_seed(SEED)
        return getattr(models, self.net)(**self.net_args)

    def make_data(self) -> FederatedData:
        """Return the data, partitioned."""
        return FederatedData(partition=IID(), seed=SEED, **self.data)

    def config(self) -> dict[str, Any]:
        """Return the same as a configuration for `fedpm fit`, without the method."""
        partition = {"class_path": "fedpm_lightning.data.IID"}
        net = {"class_path": f"fedpm_lightning.models.{self.net}", "init_args": self.net_args}
        return {
            "seed_everything": SEED,
            "rounds": self.rounds,
            "data": {"partition": partition, **self.data},
            "model": {"net": net, "local_epochs": self.local_epochs},
        }

    def words(self, contestant: str, folder: Path) -> list[str]:
        """Write the configuration into `folder` and return the words of the `fedpm fit` that runs it there.

        Args:
            contestant: A method of METHOD_FILES, perhaps with settings of SETTINGS behind it: "FedAvg bf16".
            folder: Where to write.
        """
        method, *settings = contestant.split()
        file = folder / "task.yaml"
        file.write_text(yaml.safe_dump(self.config()))
        of_method = REPO / "configs" / "method" / f"{METHOD_FILES[method]}.yaml"
        words = ["fit", "--config", str(file), "--config", str(of_method), "--run_dir", str(folder / "run")]
        words.append("--model.executor=sequential")
        words += [word for setting in settings for word in SETTINGS[setting]]
        return [*words, f"--model.method.lr={self.lr}", *self.options]


def cnn(images: int = 10_000, rounds: int = 3, source: str | None = None, augment: bool | None = None) -> Task:
    """Return the CNN task on so many training images and a tenth of that for evaluation.

    Args:
        images: Training images, spread over 10 clients.
        rounds: Communication rounds.
        source: Where CIFAR-10 is, as `data.source` takes it; None: made-up images of its shape.
        augment: Whether training images are cropped and mirrored; None: as the data set is used to (they are).
    """
    where = {"name": "benchmarks.tasks.made_up_images"} if source is None else {"name": "cifar10", "source": source}
    sizes = {"limit_train": images, "limit_test": max(images // 10, 10)}
    data = {**where, **sizes, "num_clients": 10, "batch_size": 64, "val_fraction": 0.0, "augment": augment}
    return Task("CNN", {"num_classes": 10}, data, rounds)


def overhead(images: int = 2_000, rounds: int = 50, source: str | None = None, augment: bool | None = None) -> Task:
    """Return the logistic task; `images`, `source` and `augment` do not apply to it."""
    data = {"name": "benchmarks.tasks.made_up_vectors", "num_clients": 100, "clients_per_round": 10, "batch_size": 10}
    args = {"in_features": 60, "num_classes": 10}
    return Task("Logistic", args, {**data, "val_fraction": 0.0}, rounds, lr=0.1, options=("--checkpoint_every=20",))


TASKS: dict[str, Callable[..., Task]] = {"cnn": cnn, "overhead": overhead}
