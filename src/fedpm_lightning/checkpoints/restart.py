"""What a start finds in its run's folder: a checkpoint to go on from, SLURM's leftovers, the W&B run's id."""

from __future__ import annotations

import os
import pickle
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch.utilities import rank_zero_only

from fedpm_lightning.checkpoints.atomic_files import NO_ROOM, DiskFullError, digest, from_file, write_durably
from fedpm_lightning.checkpoints.identity import compare, refuse
from fedpm_lightning.checkpoints.manifest import manifest_of, newest_intact
from fedpm_lightning.checks import is_mapping

if TYPE_CHECKING:
    from jsonargparse import Namespace

WANDB_ID = "wandb_id.txt"


def last_checkpoint(run_dir: Path, must: bool) -> str | None:
    """Return the newest whole checkpoint, or None for a fresh start.

    Raises:
        FileNotFoundError: If there is none and there must be one.
        ValueError: If there are some and all are damaged.
    """
    found = newest_intact(run_dir / "checkpoints", _print_line)
    if found is None and must:
        last = run_dir / "checkpoints" / "last.ckpt"
        raise FileNotFoundError(f"--resume must: {last} does not exist; use --resume auto to start afresh")
    return None if found is None else str(found)


def _print_line(line: str) -> None:
    if getattr(rank_zero_only, "rank", 0) == 0:
        print(line, flush=True)


def compare_with(checkpoint: Path, config: Mapping[str, object]) -> tuple[str, ...]:
    """Refuse a checkpoint of another experiment; return what else changed.

    Raises:
        ValueError: Naming the keys that differ.
    """
    manifest = manifest_of(checkpoint)
    if manifest is None:  # from another place, without its manifest: there is nothing to compare with
        return ()
    refused, changes = compare(manifest.config, config)
    refuse(refused, str(checkpoint))
    return tuple(map(str, changes))


def check_checkpoint(path: Path, net: Mapping[str, Any]) -> int:
    """Check that a file is a checkpoint of a network like this one; only its headers are read, and no code is run.

    Args:
        path: The file.
        net: The state_dict of the module that is to load it.

    Returns:
        The round after which it was written.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no checkpoint of a run, or of another network.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint {path}; give --run_dir runs/NAME or --ckpt_path FILE")
    try:
        content = from_file(path, mmap=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError) as cause:
        reason = str(cause).splitlines()[0][:80]
        raise ValueError(f"{path} is no checkpoint of tensors and numbers ({type(cause).__name__}: {reason})") from None
    if not (is_mapping(content) and content.keys() >= {"state_dict", "federated", "global_step"}):
        raise ValueError(f"{path} is no checkpoint of a federated run: it lacks state_dict, federated or global_step")
    old = {name: tuple(tensor.shape) for name, tensor in content["state_dict"].items()}
    new = {name: tuple(tensor.shape) for name, tensor in net.items()}
    differing = [name for name in (*old, *new) if old.get(name) != new.get(name)]
    if differing:
        name = differing[0]
        raise ValueError(
            f"{path} is of another network: {name} is {old.get(name, 'not there')} in the checkpoint and "
            f"{new.get(name, 'not there')} in the model; give the model.net that it was made with"
        )
    return int(content["global_step"])


def check_intact(path: Path) -> None:
    """Check that a checkpoint is as it was written, where its manifest lies beside it: torch sees no flipped bit.

    Raises:
        ValueError: If the checkpoint or its manifest is damaged.
    """
    manifest = manifest_of(path)
    if manifest is not None and digest(path) != manifest.sha256:
        raise ValueError(f"the checkpoint {path} has not the checksum it was written with: it is torn or changed")


def clear_requeue(run_dir: Path, fresh: bool) -> None:
    """Remove SLURM's requeue checkpoints before a fresh start, or Lightning would go on from them unasked."""
    if fresh and getattr(rank_zero_only, "rank", 0) == 0:
        for path in run_dir.glob("hpc_ckpt_*.ckpt"):
            path.unlink()


def choose_wandb_run(loggers: Sequence[Namespace | bool], run_dir: Path, fresh: bool) -> None:
    """Give a WandbLogger the run folder's id, so that a restart continues the same W&B run.

    An id given by hand stays, and so does one that W&B itself chose (a sweep's agent sets it in the environment).
    """
    if "WANDB_SWEEP_ID" in os.environ or "WANDB_RUN_ID" in os.environ:
        return
    for logger in loggers:
        if isinstance(logger, bool) or not logger.class_path.endswith("WandbLogger"):
            continue
        if logger.init_args.get("id") is None and logger.init_args.get("version") is None:
            logger.init_args.id = wandb_id(run_dir, fresh)


def wandb_id(run_dir: Path, fresh: bool) -> str:
    """Return the folder's W&B id; a new one at the first start and after --resume never."""
    file = run_dir / WANDB_ID
    if file.is_file() and not fresh:
        return file.read_text(encoding="utf-8").strip()
    new = secrets.token_hex(4)
    if getattr(rank_zero_only, "rank", 0) == 0:  # the others never talk to W&B
        write_durably(file, f"{new}\n".encode())
    return new


def full_disk(error: Exception) -> Exception:
    """Explain a full disk, whichever file met it."""
    if isinstance(error, OSError) and error.errno in NO_ROOM and not isinstance(error, DiskFullError):
        where = error.filename or "a file of the run"
        return DiskFullError(
            f"no room for {where} ({error.strerror}); the last checkpoint is intact. Make room and start the same "
            "command again: it goes on from there"
        )
    return error
