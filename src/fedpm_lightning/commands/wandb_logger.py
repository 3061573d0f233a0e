"""Prepare a run's WandbLogger: folder, name and group; add one under a W&B agent."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpm_lightning.callbacks.run.facts import versions
from fedpm_lightning.configuration.read import Configuration
from fedpm_lightning.report.history import History
from fedpm_lightning.report.records import Summary
from fedpm_lightning.report.run import Run
from fedpm_lightning.report.weights_and_biases.scope import group_name

if TYPE_CHECKING:
    from jsonargparse import Namespace

AGENT = "WANDB_SWEEP_ID"
"""Set in the environment by `wandb agent`, which also sets WANDB_RUN_ID."""

LOCAL_SWEEP = "FEDPM_SWEEP"
"""Set by `fedpm sweep` for its runs: the name of the sweep."""


def under_agent(configuration: Configuration) -> Configuration:
    """Add a WandbLogger to a run of a W&B sweep that names no logger: the agent waits for it."""
    if configuration.command == "fit" and AGENT in os.environ and "trainer.logger" not in configuration.composed.named:
        print("a run of a W&B sweep: --trainer.logger WandbLogger", flush=True)
        configuration.composed.add_option("trainer.logger", "WandbLogger")
    return configuration


def agents_run_dir(label: str, seed: object) -> Path | None:
    """Return the folder of a run that a W&B agent started; None for any other run.

    It is named by the W&B run: two agents may start in one second or in one SLURM job, and a run that W&B queues again
    after a pre-emption has the same id and so finds its checkpoint.
    """
    sweep, run = os.environ.get(AGENT), os.environ.get("WANDB_RUN_ID")
    if sweep is None or run is None:
        return None
    return Path("runs") / f"sweep-{_slug(sweep)}" / f"{label}-s{seed}-{_slug(run)}"


def prepare_loggers(loggers: Sequence[Namespace | bool], run_dir: Path, config: Mapping[str, Any]) -> None:
    """Give every WandbLogger the run's folder, and a group that the runs of one setting share over all seeds.

    Raises:
        ValueError: If a WandbLogger could not log, or is asked for something that has no effect here.
        ImportError: If a TensorBoardLogger has no TensorBoard.
    """
    for logger in loggers:
        if not isinstance(logger, bool) and logger.class_path.endswith("TensorBoardLogger"):
            _check_tensorboard()
        if isinstance(logger, bool) or not logger.class_path.endswith("WandbLogger"):
            continue
        _check(logger.init_args)
        if logger.init_args.save_dir in {".", None}:
            # Absolute: W&B's service writes the files, and it may have been started in another folder.
            logger.init_args.save_dir = str(run_dir.resolve())
        if logger.init_args.get("name") is None and AGENT not in os.environ:
            logger.init_args.name = run_dir.name
        if "WANDB_RUN_GROUP" not in os.environ and logger.init_args.get("group") is None:
            logger.init_args.group = group_of(config)


def _check_tensorboard() -> None:
    """Check that TensorBoard or tensorboardX is installed; the error names the extra."""
    if find_spec("tensorboard") is None and find_spec("tensorboardX") is None:
        raise ImportError(
            "TensorBoardLogger needs tensorboard; install it with: pip install 'fedpm-lightning[tensorboard]'"
        )


def _check(arguments: Namespace) -> None:
    """Refuse settings that W&B could not serve, before anything is built.

    Raises:
        ValueError: If checkpoints are to be uploaded, or there is neither a login nor the offline mode.
    """
    if arguments.get("log_model"):
        raise ValueError(
            "trainer.logger.log_model has no effect: checkpoints lie in the run's folder. Upload them with\n"
            "  wandb artifact put --type model runs/NAME/checkpoints"
        )
    mode = os.environ.get("WANDB_MODE", "online")
    if arguments.get("offline") or mode in {"offline", "disabled", "dryrun"} or arguments.get("anonymous"):
        return
    import wandb

    if not wandb.api.api_key:
        raise ValueError(
            "W&B has no login on this machine: run `wandb login`, set WANDB_API_KEY, "
            "or say --trainer.logger.offline true and sync later"
        )


def sweep_tags() -> list[str]:
    """Return the tag of a run that `fedpm sweep` started; W&B tags the runs of its own sweeps itself."""
    name = os.environ.get(LOCAL_SWEEP)
    return [f"sweep={name}"] if name else []


def group_of(config: Mapping[str, Any]) -> str:
    """Return the group of a run that has not begun, from its configuration."""
    facts: Summary = {"versions": versions(), "method_label": config.get("label")}
    return group_name(Run(Path(), dict(config), facts, History()))


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name)
