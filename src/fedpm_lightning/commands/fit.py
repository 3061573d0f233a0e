"""The commands fit, validate and test: LightningCLI with a run folder, rounds as the unit, and short errors."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Sequence
from datetime import datetime
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
import yaml
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback, Timer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import nn
from torch.nn.modules.conv import _ConvNd  # pyright: ignore[reportPrivateUsage]

from fedpm_lightning.callbacks.graceful_stop import GracefulStop
from fedpm_lightning.callbacks.partition_picture import PartitionPicture
from fedpm_lightning.callbacks.progress import RoundProgress
from fedpm_lightning.callbacks.run_checkpoints import RunCheckpoints
from fedpm_lightning.callbacks.run_files import RunFiles, choose_monitor
from fedpm_lightning.callbacks.wandb_run import WandbRun, finish_wandb
from fedpm_lightning.checkpoints.restart import (
    check_checkpoint,
    check_intact,
    choose_wandb_run,
    clear_requeue,
    compare_with,
    full_disk,
    last_checkpoint,
)
from fedpm_lightning.checkpoints.run_folder import RunFolder, new_folder, run_name
from fedpm_lightning.commands.settings import as_list, check_values, default_label, measured
from fedpm_lightning.commands.threads import choose_threads, has_bf16
from fedpm_lightning.commands.wandb_logger import agents_run_dir, prepare_loggers, sweep_tags, under_agent
from fedpm_lightning.configuration.compose import Composition
from fedpm_lightning.configuration.errors import ConfigurationError
from fedpm_lightning.configuration.experiment_keys import EXPERIMENT_KEYS, LIGHTNING_KEYS, TRAINER_DEFAULTS
from fedpm_lightning.configuration.parser import ShortErrorParser, shorten
from fedpm_lightning.configuration.read import Configuration, read
from fedpm_lightning.data.federated import FederatedData
from fedpm_lightning.errors import DivergedError, InterruptedRun, RoundError
from fedpm_lightning.trainer.module import FederatedModule
from fedpm_lightning.trainer.start_check import callbacks_of

USER_ERRORS = (MisconfigurationException, ValueError, OSError, ImportError, RoundError)


class FedpmCLI(LightningCLI):
    """LightningCLI for federated experiments."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the experiment's own keys and derive the linked ones."""
        for name, own in EXPERIMENT_KEYS.items():
            parser.add_argument(f"--{name}", type=own.type, default=own.default, help=own.help)
        parser.link_arguments("rounds", "trainer.max_epochs")
        parser.link_arguments("seed_everything", "model.seed", compute_fn=int)
        parser.link_arguments("seed_everything", "data.seed", compute_fn=int)

    command = "fit"
    configuration: ClassVar[Configuration]
    locked_folders: ClassVar[list[RunFolder]] = []
    changes: tuple[str, ...] = ()
    done_before = 0

    @classmethod
    def subcommands(cls) -> dict[str, set[str]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the one command to parse (each parser costs a second to build) and what the CLI supplies itself."""
        loaders = {"train_dataloaders", "val_dataloaders"} if cls.command == "fit" else {"dataloaders"}
        return {cls.command: {"model", "datamodule"} | loaders}

    @property
    def settings(self) -> Any:
        """The command's parsed configuration."""
        return self.config[str(self.subcommand)]

    def _parse_ckpt_path(self) -> None:
        # Lightning lets the hyper-parameters stored in a checkpoint override the command line. Here the command
        # line is what counts.
        return

    def before_instantiate_classes(self) -> None:
        """Choose the run's folder before anything writes."""
        settings = self.settings
        self.print_config_and_exit()
        check_values(settings, self.configuration.composed)
        settings.label = settings.label or default_label(settings.model)
        given_run_dir = settings.run_dir
        if self.subcommand == "fit":
            self.take_folder(settings)
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

    def take_folder(self, settings: Any) -> None:
        """Choose the run's folder and keep other processes out of it."""
        folder = choose_folder(settings)
        settings.run_dir = str(folder.path)
        if _rank() == 0:
            folder.acquire()
            self.locked_folders.append(folder)

    def print_config_and_exit(self) -> None:
        """Print the configuration and leave, if that is all that is asked for."""
        if any(name == "print_config" for name, _ in self.configuration.print_options):
            parser = self._parser(self.subcommand)
            print(parser.dump(self.settings, skip_none=False, skip_link_targets=False, format="yaml"), end="")
            raise SystemExit(0)

    def choose_start(self, settings: Any) -> None:
        """Find the checkpoint to go on from, and refuse one of another experiment."""
        run_dir, fresh = Path(settings.run_dir), settings.resume == "never"
        if settings.ckpt_path is None and not fresh:
            settings.ckpt_path = last_checkpoint(run_dir, must=settings.resume == "must")
        if settings.ckpt_path is None:
            clear_requeue(run_dir, fresh)
        else:
            self.changes = compare_with(Path(settings.ckpt_path), self.recorded_config)
        choose_wandb_run(as_list(settings.trainer.logger), run_dir, fresh)

    def instantiate_classes(self) -> None:
        """Build the objects; look at the checkpoint before anything is loaded into them."""
        super().instantiate_classes()
        path = self.settings.ckpt_path
        if path is None:
            return
        self.done_before = done = check_checkpoint(Path(path), self.model.state_dict())
        if self.subcommand != "fit":  # a resume checks every file of a checkpoint as it is read
            check_intact(Path(path))
            print(f"{self.subcommand} of {path}, saved after round {done}")

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Build the trainer with the frame's callbacks and the run's own root folder."""
        given = as_list(self._get(self.config_init, "trainer").get("callbacks"))
        frame = self.run_callbacks() if self.subcommand == "fit" else []
        root = str(self.settings.run_dir)
        if self.subcommand != "fit":
            kwargs["enable_progress_bar"] = False
        return super().instantiate_trainer(callbacks=given + frame, default_root_dir=root, **kwargs)

    def run_callbacks(self) -> list[Callback]:
        """Return what every run has: its files, a progress bar, W&B's metric axes and checkpoints."""
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
        """Say why rounds were not trained, where that is no error."""
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
        parser = self._parser(self.subcommand)
        return str(parser.dump(self.recorded, skip_none=False, skip_link_targets=False, format="yaml"))

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


def choose_folder(settings: Any) -> RunFolder:
    """Return the run's folder: the one asked for, else a new one named by experiment, method, seed and time.

    Raises:
        FolderInUseError: If ranks that were started from outside agree on a folder that is there already.
        ValueError: If ranks that were started from outside have no name to agree on.
    """
    if settings.run_dir is not None:
        return RunFolder(Path(settings.run_dir))
    by_agent = agents_run_dir(_slug(settings.label), settings.seed_everything)
    if by_agent is not None:
        return RunFolder(by_agent)
    if "LOCAL_RANK" in os.environ and "FEDPM_RUN_DIR" in os.environ:  # a rank started by the first one
        return RunFolder(Path(os.environ["FEDPM_RUN_DIR"]))
    alone = int(os.environ.get("SLURM_NTASKS") or 1) == 1
    if alone and int(os.environ.get("WORLD_SIZE") or 1) > 1:  # torchrun: each would take the time of its own clock
        raise ValueError("ranks that are started one by one need one name of their folder: give --run_dir runs/NAME")
    experiment = f"{settings.experiment}-{_slug(settings.label)}-s{settings.seed_everything}"
    name = run_name(experiment, lambda: datetime.now().strftime("%Y%m%d-%H%M%S"))
    if _rank() > 0:
        return RunFolder(Path("runs") / name)
    folder = new_folder(name, Path("runs"), number=alone)
    os.environ["FEDPM_RUN_DIR"] = str(folder.path)
    return folder


def _rank() -> int:
    return int(getattr(rank_zero_only, "rank", 0) or 0)


def _slug(label: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in label.lower()).strip("_")


def main(argv: list[str]) -> int:
    """Run fit, validate or test.

    Args:
        argv: The command and its options.

    Returns:
        0, 1 (the run failed), 2 (the command line is wrong), 3 (the model diverged), or 128 + n after signal n.
    """
    code = run(argv)
    finish_wandb(code)
    return code


def run(argv: list[str], cli: type[FedpmCLI] = FedpmCLI) -> int:
    """Run the command and turn what it ends with into an exit code."""
    quiet_lightning()
    try:
        command_line(cli, under_agent(read(argv)))
    except ConfigurationError as error:
        return _report(error, 2)
    except SystemExit as stop:
        return exit_code(stop)
    except KeyboardInterrupt:  # before the first round, or after the last
        return 130
    except InterruptedRun as stop:
        print(stop, file=sys.stderr)
        # The launcher takes a rank that ends with an error for a crash, and ends the others by force.
        return 0 if os.environ.get("LOCAL_RANK", "0") != "0" else 128 + stop.signal
    except DivergedError as error:
        return _report(error, 3)
    except USER_ERRORS as error:
        return _report(full_disk(error), 1)
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "wandb":
            raise
        return _report(error, 1)
    finally:
        while FedpmCLI.locked_folders:
            FedpmCLI.locked_folders.pop().release()
    return 0


def command_line(cli: type[FedpmCLI], configuration: Configuration) -> FedpmCLI:
    """Hand a configuration to jsonargparse, and do with the result what `cli` does."""
    FedpmCLI.command = ShortErrorParser.command = configuration.command
    FedpmCLI.configuration, ShortErrorParser.composed = configuration, configuration.composed
    parser_kwargs: dict[str, Any] = {command: {"allow_abbrev": False} for command in FedpmCLI.subcommands()}
    return cli(
        FederatedModule,
        FederatedData,
        args=parser_input(configuration),
        parser_class=ShortErrorParser,
        parser_kwargs={"allow_abbrev": False, **parser_kwargs},
        trainer_defaults=TRAINER_DEFAULTS,
        seed_everything_default=LIGHTNING_KEYS["seed_everything"].default,
        save_config_callback=None,
        auto_configure_optimizers=False,
        load_from_checkpoint_support=False,
    )


def parser_input(configuration: Configuration) -> dict[str, Any]:
    """Return what jsonargparse reads."""
    command = configuration.command
    return {"subcommand": command, command: configuration.values}


def parse(argv: Sequence[str]) -> Any:
    """Return the settings of a command and its options as a run would use them; nothing is written, seeded or built.

    Raises:
        ConfigurationError: If a file, a key or a name is wrong.
        SystemExit: With code 2 after a message on stderr, if a value is.
    """
    configuration = read(argv)
    ShortErrorParser.composed = configuration.composed
    settings = _parser(configuration.command).parse_object(parser_input(configuration))[configuration.command]
    check_values(settings, configuration.composed)
    return settings


class _OnlyAParser(FedpmCLI):
    """The command line up to its parser: building it takes as long as parsing twice, so it is built once."""

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        self.config = {"subcommand": self.command}  # pyright: ignore[reportIncompatibleVariableOverride, reportAttributeAccessIssue]

    def _set_seed(self) -> None: ...

    def before_instantiate_classes(self) -> None: ...

    def instantiate_classes(self) -> None: ...

    def _run_subcommand(self, subcommand: str) -> None: ...


@cache
def _parser(command: str) -> LightningArgumentParser:
    quiet_lightning()
    return command_line(_OnlyAParser, Configuration(command, Composition())).parser


def exit_code(stop: SystemExit) -> int:
    """Return the code for what Lightning turns into SystemExit: it has 0 for SIGTERM and 1 for Ctrl-C."""
    if isinstance(stop, SIGTERMException):
        return 143
    if isinstance(stop.__context__, KeyboardInterrupt):
        return 130
    return stop.code if isinstance(stop.code, int) else 1


def _report(error: Exception, code: int) -> int:
    if os.environ.get("FEDPM_TRACEBACK"):
        raise error
    print(f"error: {shorten(str(error))}\n(FEDPM_TRACEBACK=1 shows where)", file=sys.stderr)
    return code


def quiet_lightning() -> None:
    """Silence Lightning's banners and the advice that does not fit a loader of one cohort."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
    for message in (
        ".*does not have many workers.*",
        ".*No positive `max_epochs`.*",
        ".*exists and is not empty.*",
        ".*GPU available but not used.*",
        ".*isinstance.treespec, LeafSpec.*",
        ".*`srun` command is available.*",  # a run on a login node, or one that an agent or a sweep's task started
        ".*callbacks used to create the checkpoint need to be provided.*",
        ".*args parameter is intended to run from within Python.*",
        ".*Total length of `list` across ranks is zero.*",  # no evaluation split at all
    ):
        warnings.filterwarnings("ignore", message=message)
