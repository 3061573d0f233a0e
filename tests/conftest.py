"""What every test may use: the repository's folder, and `fedpm` run in this process inside an empty folder."""

from __future__ import annotations

import os

# The tests' problems are small: more threads only wait for each other, and the thread count decides the last bits.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import csv
import gc
import io
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedpm_lightning.cli import main

REPO = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class FinishedRun:
    """A run's exit code, its folder and what lies in it."""

    code: int
    folder: Path

    @property
    def rows(self) -> list[dict[str, str]]:
        with (self.folder / "metrics.csv").open() as file:
            return list(csv.DictReader(file))

    @property
    def summary(self) -> dict:
        return json.loads((self.folder / "summary.json").read_text())


@pytest.fixture
def repo() -> Path:
    return REPO


@pytest.fixture(autouse=True)
def no_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out partition.png, a third of a small run's time, unless the test is marked `pictures`."""
    if request.node.get_closest_marker("pictures") is None:
        draw = "fedpm_lightning.callbacks.run.partition_picture.PartitionPicture.on_train_start"
        monkeypatch.setattr(draw, lambda self, trainer, module: None)


@pytest.fixture(autouse=True)
def unfreeze() -> Iterator[None]:
    """Give the collector back what a command's start froze: Hypothesis asks it who refers to what."""
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def forget_wandb() -> Iterator[None]:
    """Let every test begin without what W&B, once a process, has read of an earlier test's environment."""
    yield
    if (wandb := sys.modules.get("wandb")) is not None:
        wandb.teardown()


@pytest.fixture
def fedpm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., FinishedRun]:
    """Run `fedpm` with the given words; configs/ and runs/ are relative to a temporary folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDPM_RUN_DIR", raising=False)
    for name in ("configs", "sweeps"):
        if (REPO / name).is_dir() and not (tmp_path / name).exists():
            os.symlink(REPO / name, tmp_path / name)

    def run(*words: str, folder: str = "run") -> FinishedRun:
        own = () if any(w.startswith("--run_dir") for w in words) else ("--run_dir", folder)
        monkeypatch.delenv("FEDPM_RUN_DIR", raising=False)
        return FinishedRun(main([*words, *own]), tmp_path / folder)

    return run


@pytest.fixture
def quickstart(fedpm: Callable[..., FinishedRun]) -> Callable[..., FinishedRun]:
    """`fedpm fit` on the quickstart's digits, with further words."""

    def run(*words: str, folder: str = "run") -> FinishedRun:
        return fedpm("fit", "--config", "configs/quickstart.yaml", *words, folder=folder)

    return run


def write_images(folder: Path, column: str, classes: int) -> Path:
    """Write two random 32 x 32 images a class, in the Hugging Face layout."""
    pa = pytest.importorskip("pyarrow", reason="parquet needs the hf extra")
    pq = pytest.importorskip("pyarrow.parquet", reason="parquet needs the hf extra")

    folder.mkdir()
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        labels = [k for k in range(classes) for _ in range(2)]
        encoded = []
        for _ in labels:
            buffer = io.BytesIO()
            Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(buffer, format="PNG")
            encoded.append({"bytes": buffer.getvalue(), "path": None})
        pq.write_table(pa.table({"img": encoded, column: labels}), folder / f"{split}-00000-of-00001.parquet")
    return folder


@pytest.fixture(scope="session")
def tiny_play(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of plays: four roles of 480 to 2,400 characters in speeches of 60, and SHORT, who says next to nothing."""
    rng, file = np.random.default_rng(0), tmp_path_factory.mktemp("play") / "play.txt"
    left = {"ROMEO": 40, "FIRST WITCH": 15, "Nurse": 25, "A lord": 8, "SHORT": 1}
    speeches: list[str] = []
    while left:
        role = str(rng.choice(list(left)))
        letters = "".join(rng.choice(list("aeiou tnshrdl"), 58))
        speeches.append(f"{role}:\n{letters[:30]},\n{letters[30:]}\n")
        left = {name: n - (name == role) for name, n in left.items() if n > (name == role)}
    file.write_text("\n".join(speeches))
    return file


@pytest.fixture(scope="session")
def tiny_cifar(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders that look like CIFAR-10 and CIFAR-100, with two random images a class."""
    folder = tmp_path_factory.mktemp("images")
    return {
        "cifar100": write_images(folder / "cifar100", "fine_label", 100),
        "cifar10_": write_images(folder / "cifar10", "label", 10),
    }


@pytest.fixture(scope="session")
def tiny_libsvm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random binary problem as LIBSVM text: 60 samples, 6 of 20 features each."""
    path = tmp_path_factory.mktemp("libsvm") / "a9a"
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(60):
        x = rng.choice(np.arange(1, 21), size=6, replace=False)
        label = 1 if x.sum() + 20 * rng.normal() > 60 else -1
        lines.append(f"{label} " + " ".join(f"{j}:1" for j in sorted(x)))
    path.write_text("\n".join(lines) + "\n")
    return path
