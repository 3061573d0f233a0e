"""The command `fedpm partition`: the split that a configuration of `fit` gives, without a model or a trainer."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace
from lightning.pytorch.cli import LightningArgumentParser

from fedpm_lightning.callbacks.run.facts import partition_facts, to_json
from fedpm_lightning.commands.exit_codes import run
from fedpm_lightning.commands.lightning_cli import FedpmCLI
from fedpm_lightning.data.federated import FederatedData
from fedpm_lightning.report.metrics_csv import write_atomically
from fedpm_lightning.report.partitions.picture import draw_partition, partition_title
from fedpm_lightning.report.partitions.text import print_partition


class PartitionCLI(FedpmCLI):
    """Parses exactly what `fit` does, then builds the data alone."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add `--output`; the model, which no split depends on, may be left out."""
        super().add_arguments_to_parser(parser)
        parser.add_argument("--output", type=Path | None, default=None, help="folder for partition.json and pictures")
        anything = {"class_path": "fedpm_lightning.models.Logistic", "init_args": {"in_features": 1}}
        parser.set_defaults({"model.net": anything, "model.method": {"class_path": "fedpm_lightning.methods.FedAvg"}})

    def instantiate_classes(self) -> None:
        """Build the data and show the split."""
        parser = ArgumentParser(exit_on_error=False)
        parser.add_class_arguments(FederatedData, "data")
        built: Any = parser.instantiate_classes(Namespace(data=self.settings.data))
        show(built.data, self.settings.output)

    def _run_subcommand(self, subcommand: str) -> None:
        return


def show(data: FederatedData, output: Path | None) -> None:
    """Print a split, and save it with its pictures where a folder is given."""
    partition = partition_facts(data)
    title = partition_title(str(data.name), partition)
    print_partition(partition, title)
    if output is None:
        return
    output.mkdir(parents=True, exist_ok=True)
    written = [output / "partition.json"]
    write_atomically(written[0], to_json({"data": data.name, **partition}))
    try:
        written += draw_partition(partition, title, output)
    except RuntimeError as missing:  # no matplotlib: the figures are saved all the same
        print(f"no pictures: {missing}", file=sys.stderr)
    for file in written:
        print(f"saved: {file}", file=sys.stderr)


def main(argv: Sequence[str] | None = None) -> int:
    """Show the split of a configuration.

    Args:
        argv: The arguments after `fedpm partition`: those of `fedpm fit`, and `--output DIR`.

    Returns:
        0; 1 where a value is out of range or the data are missing, 2 where the command line is wrong.
    """
    arguments = list(sys.argv[2:] if argv is None else argv)
    return run(["fit", *arguments], PartitionCLI)
