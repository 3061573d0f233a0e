"""LightningCLI with this package's keys: a command's files and options, parsed and checked.

`fit.py` runs what it parses; `fedpm partition` and `fedpm export` build a part of it, sweeps look at the values alone.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from fedpm_lightning.commands.settings import check_values
from fedpm_lightning.configuration.compose import Composition
from fedpm_lightning.configuration.experiment_keys import EXPERIMENT_KEYS, LIGHTNING_KEYS, TRAINER_DEFAULTS
from fedpm_lightning.configuration.parser import ShortErrorParser
from fedpm_lightning.configuration.read import Configuration, read
from fedpm_lightning.data.federated import FederatedData
from fedpm_lightning.trainer.module import FederatedModule

if TYPE_CHECKING:
    from jsonargparse import Namespace


class FedpmCLI(LightningCLI):
    """LightningCLI up to the checked values of one command."""

    command = "fit"
    configuration: ClassVar[Configuration]

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the experiment's own keys and derive the linked ones."""
        for name, own in EXPERIMENT_KEYS.items():
            parser.add_argument(f"--{name}", type=own.type, default=own.default, help=own.help)
        parser.link_arguments("rounds", "trainer.max_epochs")
        parser.link_arguments("seed_everything", "model.seed", compute_fn=int)
        parser.link_arguments("seed_everything", "data.seed", compute_fn=int)

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
        """Check the values; with --print_config print the configuration and exit."""
        if any(name == "print_config" for name, _ in self.configuration.print_options):
            print(self.text_of(self.settings), end="")
            raise SystemExit(0)
        check_values(self.settings, self.configuration.composed)

    def text_of(self, settings: Namespace) -> str:
        """Return the command's complete configuration as YAML."""
        parser = self._parser(self.subcommand)
        return str(parser.dump(settings, skip_none=False, skip_link_targets=False, format="yaml"))


def command_line(cli: type[FedpmCLI], configuration: Configuration) -> FedpmCLI:
    """Parse a configuration with jsonargparse, and run `cli` on the result."""
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
    settings = parser_of(configuration.command).parse_object(parser_input(configuration))[configuration.command]
    check_values(settings, configuration.composed)
    return settings


class _OnlyAParser(FedpmCLI):
    """The command line up to its parser: building it takes as long as parsing twice, so it is built once."""

    def parse_arguments(self, parser: LightningArgumentParser, args: object) -> None:
        self.config = {"subcommand": self.command}  # pyright: ignore[reportIncompatibleVariableOverride, reportAttributeAccessIssue]

    def _set_seed(self) -> None: ...

    def before_instantiate_classes(self) -> None: ...

    def instantiate_classes(self) -> None: ...

    def _run_subcommand(self, subcommand: str) -> None: ...


@cache
def parser_of(command: str) -> LightningArgumentParser:
    """Return the parser of a command."""
    quiet_lightning()
    return command_line(_OnlyAParser, Configuration(command, Composition())).parser


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
