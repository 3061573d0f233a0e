"""What the tests of interrupted runs plug into a run by class path, and `fedpm` in a process that may be killed."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path

import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import nn

from fedpm_lightning.callbacks.base import FederatedCallback
from fedpm_lightning.cli import main
from fedpm_lightning.models import MLP


class DropoutMLP(MLP):
    """The MLP with dropout before its last layer: it draws from torch's global generator."""

    def __init__(self, in_features: int = 64, hidden: tuple[int, ...] = (32,), num_classes: int = 10) -> None:
        super().__init__(in_features, hidden, num_classes)
        self.insert(len(self) - 1, nn.Dropout(0.3))


class DropoutCNN(nn.Sequential):
    """A small convolutional network with dropout, for images of 8 x 8."""

    def __init__(self) -> None:
        conv = nn.Conv2d(1, 4, 3, padding=1)
        super().__init__(conv, nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(256, 10))


class Break(FederatedCallback):
    """Ends the run in the middle of round `at`: by an error, by SIGKILL, or by sleeping until somebody else does."""

    def __init__(self, at: int = 4, how: str = "raise") -> None:
        self.at, self.how = at, how

    def on_client_end(self, round, update) -> None:
        if round.number + 1 != self.at:
            return
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "sleep":
            time.sleep(60)
        raise ValueError("the test breaks the run")


class Signal(FederatedCallback):
    """Sends this process SIGTERM in its first round, `times` times within a moment, or at longer intervals."""

    def __init__(self, times: int = 1, every_s: float = 0.05) -> None:
        self.times, self.every_s = times, every_s

    def on_round_start(self, round) -> None:
        for _ in range(self.times if round.number == 0 else 0):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(self.every_s)


def broken(at: int, how: str) -> tuple[str, ...]:
    """Return the words that add `Break` to a run."""
    return (
        "--trainer.callbacks+",
        "resume_parts.Break",
        "--trainer.callbacks.at",
        f"{at}",
        "--trainer.callbacks.how",
        how,
    )


def forked(words: list[str] | list[list[str]], output: Path, **environment: str) -> int:
    """Start `fedpm` in a child of this process, where everything is imported already; return its process id.

    Args:
        words: What follows `fedpm`, or several command lines, run one after another until one fails.
        output: What the child prints is appended here.
        environment: Variables of the child.
    """
    child = os.fork()
    if child:
        return child
    try:
        file = os.open(output, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
        os.environ.pop("FEDPM_RUN_DIR", None)
        os.environ.update(environment)
        rank_zero_only.rank = int(environment.get("LOCAL_RANK", 0))  # Lightning looks once, when it is imported
        commands = [words] if isinstance(words[0], str) else words
        os._exit(next((code for command in commands if (code := main(command))), 0))
    finally:
        os._exit(99)


def ended(child: int, seconds: float = 300.0) -> int:
    """Wait for a child; return its exit code, 128 + n after signal n. One that hangs is killed, which is an error."""
    end = time.monotonic() + seconds
    while not (found := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise AssertionError(f"process {child} did not end within {seconds:.0f} s")
        time.sleep(0.02)
    code = os.waitstatus_to_exitcode(found[1])
    return code if code >= 0 else 128 - code


def until(condition, seconds: float = 120.0) -> None:
    """Wait until something has happened."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)


def rounds_written(folder: Path) -> int:
    """Return how many rounds metrics.csv holds."""
    file = folder / "metrics.csv"
    return max(0, file.read_text().count("\n") - 1) if file.exists() else 0


def last(folder: Path) -> dict:
    return torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)


def torn_and_gone_on(fedpm, *words: str):
    """Run two rounds; with the second one's checkpoint torn, as a kill leaves it, go on from the first to the same end.

    Returns:
        The undisturbed run.
    """
    straight = fedpm(*words, "--rounds", "2", folder="straight")
    assert straight.code == 0
    torn = straight.folder.with_name("torn")
    shutil.copytree(straight.folder, torn, symlinks=True)
    newest = torn / "checkpoints" / "last.ckpt"
    newest.write_bytes(newest.read_bytes()[:2000])
    gone_on = fedpm(*words, "--rounds", "2", folder="torn")
    assert gone_on.code == 0 and [resume["after_round"] for resume in gone_on.summary["resumes"]] == [1]
    same_end(straight, gone_on)
    return straight


def same_end(one, other) -> None:
    """Assert that two runs end with the same weights, optimizer, server and figures, bit for bit."""
    a, b = last(one.folder), last(other.folder)
    equal_trees(a["state_dict"], b["state_dict"])
    equal_trees(a["optimizer_states"], b["optimizer_states"])
    equal_trees(a["federated"]["server"], b["federated"]["server"])
    equal_trees(clients_of(one.folder, a), clients_of(other.folder, b))
    for x, y in zip(one.rows, other.rows, strict=True):
        measured = [key for key in x if not key.startswith("time/")]
        assert [x[key] for key in measured] == [y[key] for key in measured]


def clients_of(folder: Path, checkpoint: dict) -> dict:
    """Return what a checkpoint's client files hold, by client, with the round that wrote each."""
    files = {client: file for client, (file, _) in checkpoint["federated"]["clients"].items()}
    return {k: (file, torch.load(folder / "checkpoints" / file, weights_only=True)) for k, file in files.items()}


def equal_trees(a, b) -> None:
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            equal_trees(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            equal_trees(x, y)
    else:
        assert a == b
