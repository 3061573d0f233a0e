"""What a start finds in its run's folder: a checkpoint to go on from, SLURM's leftovers, the W&B run's id."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_only

from fedpm_lightning.checkpoints.durable import NO_ROOM, DiskFullError, write_durably
from fedpm_lightning.checkpoints.identity import compare, refuse
from fedpm_lightning.checkpoints.manifest import manifest_of, newest_good

WANDB_ID = "wandb_id.txt"


def last_checkpoint(run_dir: Path, must: bool) -> str | None:
    """Return the newest whole checkpoint, or None for a fresh start.

    Raises:
        FileNotFoundError: If there is none and there must be one.
        ValueError: If there are some and all are damaged.
    """
    found = newest_good(run_dir / "checkpoints", _say)
    if found is None and must:
        last = run_dir / "checkpoints" / "last.ckpt"
        raise FileNotFoundError(f"--resume must: {last} does not exist; use --resume auto to start afresh")
    return None if found is None else str(found)


def _say(line: str) -> None:
    if getattr(rank_zero_only, "rank", 0) == 0:
        print(line, flush=True)


def compare_with(checkpoint: Path, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Refuse a checkpoint of another experiment; return what else changed, in words.

    Raises:
        ValueError: Naming the keys that differ.
    """
    manifest = manifest_of(checkpoint)
    if manifest is None:  # from another place, without its manifest: there is nothing to compare with
        return ()
    refused, told = compare(manifest.config, config)
    refuse(refused, str(checkpoint))
    return tuple(map(str, told))


def clear_requeue(run_dir: Path, fresh: bool) -> None:
    """Remove SLURM's requeue checkpoints before a fresh start, or Lightning would go on from them unasked."""
    if fresh and getattr(rank_zero_only, "rank", 0) == 0:
        for path in run_dir.glob("hpc_ckpt_*.ckpt"):
            path.unlink()


def settle_wandb(loggers: Sequence[Any], run_dir: Path, fresh: bool) -> None:
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
    """Put a full disk in words, whichever file met it."""
    if isinstance(error, OSError) and error.errno in NO_ROOM and not isinstance(error, DiskFullError):
        where = error.filename or "a file of the run"
        return DiskFullError(
            f"no room for {where} ({error.strerror}); the last checkpoint is intact. Make room and start the same "
            "command again: it goes on from there"
        )
    return error
