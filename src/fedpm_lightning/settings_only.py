"""The settings that a command line stands for, without running it: what `fedpm sweep` checks its points with."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from lightning.pytorch.cli import LightningArgumentParser

from fedpm_lightning.experiment import FedpmCLI, command_line, quiet_lightning
from fedpm_lightning.leaks import reset_all_leaks
from fedpm_lightning.parsing import complete_classes, recall_run
from fedpm_lightning.words import settle


class _OnlyAParser(FedpmCLI):
    """The command line up to its parser: building it takes as long as parsing twice, so it is built once."""

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        self.config = {"subcommand": self.verb}  # pyright: ignore[reportIncompatibleVariableOverride, reportAttributeAccessIssue]

    def _set_seed(self) -> None: ...

    def before_instantiate_classes(self) -> None: ...

    def instantiate_classes(self) -> None: ...

    def _run_subcommand(self, subcommand: str) -> None: ...


@cache
def _parser(verb: str) -> LightningArgumentParser:
    quiet_lightning()
    return command_line(_OnlyAParser, [verb, "-h"]).parser


def parse(argv: Sequence[str]) -> Any:
    """Return the settings of a verb and its options as a run would use them; nothing is written, seeded or built.

    Raises:
        SystemExit: With code 2 after a message on stderr, if the command line is wrong.
    """
    words = complete_classes(recall_run(settle(argv)))
    settings = _parser(words[0]).parse_args(words)[words[0]]
    reset_all_leaks(settings, words)
    return settings
