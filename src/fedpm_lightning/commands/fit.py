"""The commands fit, validate and test: a run in its folder, with the callbacks that every run gets."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import yaml
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback, Timer
from torch import nn
from torch.nn.modules.conv import _ConvNd  # pyright: ignore[reportPrivateUsage]

from fedpm_lightning.callbacks.run.checkpoints import RunCheckpoints
from fedpm_lightning.callbacks.run.files import RunFiles
from fedpm_lightning.callbacks.run.graceful_stop import GracefulStop
from fedpm_lightning.callbacks.run.partition_picture import PartitionPicture
from fedpm_lightning.callbacks.run.progress import RoundProgress
from fedpm_lightning.callbacks.run.weights_and_biases import WandbRun, finish_wandb
from fedpm_lightning.checkpoints.restart import (
    check_checkpoint,
    check_intact,
    choose_wandb_run,
    clear_requeue,
    compare_with,
    last_checkpoint,
)
from fedpm_lightning.commands.exit_codes import run
from fedpm_lightning.commands.lightning_cli import FedpmCLI
from fedpm_lightning.commands.run_dir import take_folder
from fedpm_lightning.commands.settings import as_list, default_label, measured
from fedpm_lightning.commands.threads import choose_threads, has_bf16
from fedpm_lightning.commands.wandb_logger import prepare_loggers, sweep_tags
from fedpm_lightning.report.history import choose_monitor
from fedpm_lightning.trainer.start_check import callbacks_of

if TYPE_CHECKING:
    from jsonargparse import Namespace


class FitCLI(FedpmCLI):
    """Runs fit, validate or test."""

    changes: tuple[str, ...] = ()
    done_before = 0

    def before_instantiate_classes(self) -> None:
        """Choose the run's folder before anything writes."""
        super().before_instantiate_classes()
        settings = self.settings
        settings.label = settings.label or default_label(settings.model)
        given_run_dir = settings.run_dir
        if self.subcommand == "fit":
            take_folder(settings)
        # What is written down is what was asked for, without where this one start goes on from: the next start must
        # neither go back to that checkpoint nor begin afresh again.
        self.recorded = settings.clone()
        self.recorded.ckpt_path, self.recorded.resume, self.recorded.run_dir = None, "auto", given_run_dir
        settings.weights_only = True  # null would leave it to Lightning, which executes what a checkpoint says
        if self.subcommand == "fit":
            self.choose_start(settings)
        else:
            settings.run_dir = settings.run_dir or str(Path(settings.ckpt_path or "").resolve().parent)
        prepare_loggers(as_list(settings.trainer.logger), Path(settings.run_dir), self.recorded_config)

    def choose_start(self, settings: Namespace) -> None:
        """Find the checkpoint to resume from, and refuse one of another experiment."""
        run_dir, fresh = Path(settings.run_dir), settings.resume == "never"
        if settings.ckpt_path is None and not fresh:
            settings.ckpt_path = last_checkpoint(run_dir, must=settings.resume == "must")
        if settings.ckpt_path is None:
            clear_requeue(run_dir, fresh)
        else:
            self.changes = compare_with(Path(settings.ckpt_path), self.recorded_config)
        choose_wandb_run(as_list(settings.trainer.logger), run_dir, fresh)

    def instantiate_classes(self) -> None:
        """Build the objects, and check the checkpoint before it is loaded."""
        super().instantiate_classes()
        path = self.settings.ckpt_path
        if path is None:
            return
        self.done_before = done = check_checkpoint(Path(path), self.model.state_dict())
        if self.subcommand != "fit":  # a resume checks every file of a checkpoint as it is read
            check_intact(Path(path))
            print(f"{self.subcommand} of {path}, saved after round {done}")

    def instantiate_trainer(self, **kwargs: object) -> Trainer:
        """Build the trainer with the callbacks of every run and the run's folder as root."""
        given = as_list(self._get(self.config_init, "trainer").get("callbacks"))
        frame = self.run_callbacks() if self.subcommand == "fit" else []
        root = str(self.settings.run_dir)
        if self.subcommand != "fit":
            kwargs["enable_progress_bar"] = False
        return super().instantiate_trainer(callbacks=given + frame, default_root_dir=root, **kwargs)

    def run_callbacks(self) -> list[Callback]:
        """Return the callbacks of every run: its files, a progress bar, W&B's metric axes and checkpoints."""
        run_dir = Path(self.settings.run_dir)
        config = self.recorded_config
        monitor = choose_monitor(measured(self.settings))
        folder, every = run_dir / "checkpoints", self.settings.checkpoint_every
        checkpoints = RunCheckpoints(folder, monitor, every, config, self.changes)
        stop = GracefulStop(run_dir, self.settings.grace_s)
        bars = [RoundProgress()] if self.settings.trainer.enable_progress_bar is not False else []
        files = [RunFiles(run_dir, config, text=self.recorded_text), PartitionPicture(run_dir)]
        return [*files, *bars, WandbRun(config, tags=sweep_tags()), stop, checkpoints]

    def before_fit(self) -> None:
        """Choose the number of threads."""
        lines = [self.use_threads()]
        on_cpu, precision = self.trainer.strategy.root_device.type == "cpu", str(self.settings.trainer.precision)
        if on_cpu and "bf16" in precision and not has_bf16():
            lines.append(f"precision {precision}: this processor has no bf16 instructions; 32-true is much faster")
        if self.trainer.is_global_zero:
            print("\n".join(lines), flush=True)

    def use_threads(self) -> str:
        """Set the number of threads of this process; return a line that says it."""
        requested, ranks = self.settings.threads, self.trainer.num_devices
        number, why = choose_threads(*size_of(self.model.net), ranks, requested, os.environ)
        if number is not None:
            torch.set_num_threads(number)
        return f"threads: {torch.get_num_threads()} ({why}); --threads sets another number"

    def after_fit(self) -> None:
        """Print why rounds were not trained, if that is no error."""
        done, rounds = self.trainer.global_step, self.settings.rounds
        line = ""
        if done >= rounds and done == self.done_before:
            line = f"nothing to train: all {rounds} rounds are done; --rounds N with a greater N goes on"
        elif done < rounds and time_is_over(self.trainer):
            line = f"stopped after round {done} of {rounds}: trainer.max_time {self.settings.trainer.max_time} is over"
        if line and self.trainer.is_global_zero:
            print(line, flush=True)

    @cached_property
    def recorded_text(self) -> str:
        """The command's complete configuration as YAML; writing it takes as long as some rounds."""
        return self.text_of(self.recorded)

    @cached_property
    def recorded_config(self) -> dict[str, Any]:
        """The same, as values."""
        return yaml.safe_load(self.recorded_text)


def time_is_over(trainer: Trainer) -> bool:
    """Whether trainer.max_time, of which Lightning makes a Timer, has been used up."""
    timers = [one for one in callbacks_of(trainer) if isinstance(one, Timer)]
    return any((left := timer.time_remaining()) is not None and left <= 0 for timer in timers)


def size_of(net: nn.Module) -> tuple[int, bool]:
    """Return the number of trainable parameters, and whether there are convolutions among them."""
    convolutions = any(isinstance(module, _ConvNd) for module in net.modules())
    return sum(p.numel() for p in net.parameters() if p.requires_grad), convolutions


def main(argv: list[str]) -> int:
    """Run fit, validate or test.

    Args:
        argv: The command and its options.

    Returns:
        0, 1 (the run failed), 2 (the command line is wrong), 3 (the model diverged), or 128 + n after signal n.
    """
    code = run(argv, FitCLI)
    finish_wandb(code)
    return code
