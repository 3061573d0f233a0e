"""The `fedpm` command: a thin dispatcher, so that `fedpm --help` and the light subcommands never wait for torch."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from shutil import get_terminal_size
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedpm_lightning.configuration.read import Configuration

HELP = """usage: fedpm COMMAND ...

Federated learning experiments on PyTorch Lightning.

  fit        run an experiment              fedpm fit --config quickstart
  validate   evaluate on both splits        fedpm validate --run_dir runs/NAME
  test       evaluate on the test split     fedpm test --run_dir runs/NAME
  compare    tables and figures over runs   fedpm compare runs/
  export     the trained network as a file  fedpm export runs/NAME
  dashboard  one HTML page over runs        fedpm dashboard runs/ --serve
  report     the comparison as a W&B page   fedpm report --wandb me/project
  partition  who holds which classes        fedpm partition --config quickstart
  sweep      many runs, here or on SLURM    fedpm sweep digits
  configs    what ships, by name; copies    fedpm configs
  new        a method, data, callback       fedpm new method my_method

`fedpm COMMAND --help` lists the options of a command. YAML files lie over
each other, and options over files:

  fedpm fit --config cifar10_cnn --config method/fedpm \\
            --data.partition.alpha 0.1 --model.method.lr 0.05 --rounds 100
"""

COMMANDS = {
    "fit": "fedpm_lightning.commands.fit",
    "validate": "fedpm_lightning.commands.fit",
    "test": "fedpm_lightning.commands.fit",
    "compare": "fedpm_lightning.report.tables.compare",
    "export": "fedpm_lightning.commands.export",
    "dashboard": "fedpm_lightning.report.dashboard.command",
    "report": "fedpm_lightning.report.weights_and_biases.command",
    "partition": "fedpm_lightning.commands.partition",
    "sweep": "fedpm_lightning.sweep.main",
    "configs": "fedpm_lightning.commands.configs",
    "new": "fedpm_lightning.commands.new",
}
_TRAINING = "fedpm_lightning.commands.fit"
_CONFIGURED = {_TRAINING, "fedpm_lightning.commands.partition"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: The arguments after `fedpm`; default: the command line.

    Returns:
        The exit code: 0 fine, 1 the run failed (or a value is out of range), 2 the command line is wrong, 3 the model
        diverged, 128 + n after signal n.
    """
    if "_ARGCOMPLETE" in os.environ:  # the shell asks what may come next
        from fedpm_lightning.commands.completion import complete

        complete(COMMANDS)
        return 0
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in {"-h", "--help", "help"}:
        print(HELP, end="")
        return 0
    if arguments[0] == "--version":
        from fedpm_lightning.version import version_line

        print(version_line())
        return 0
    if arguments[0] not in COMMANDS:
        print(f"error: there is no command {arguments[0]!r}; choose one of {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    sys.path.append(os.getcwd())  # a method of one's own may lie in the folder where the command is typed
    try:
        code = run_command(arguments, alone=argv is None)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:  # while the libraries were loading, or where a command has nothing to put in order
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def run_command(arguments: list[str], alone: bool) -> int:
    """Run a command that there is, after its files, keys and names have been checked; return its exit code.

    Args:
        arguments: The command and its options.
        alone: Whether the process is the command's own; in somebody else's, objects kept for good would be theirs.
    """
    module = COMMANDS[arguments[0]]
    if module in _CONFIGURED:
        topics = requested_help(arguments)
        if topics is not None:
            return explain(arguments[0], topics)
        asked = check(arguments)
        if asked is None:
            return 2
        if arguments[0] == "fit" and module not in sys.modules and not asked.print_options:
            announce(asked)
    run: Callable[[list[str]], int] = (load if alone else import_module)(module).main
    return run(arguments if module == _TRAINING else arguments[1:])


def requested_help(arguments: Sequence[str]) -> list[str] | None:
    """Return what a command line asks help on; None where it asks for none."""
    if not any("help" in word or word == "-h" for word in arguments):
        return None
    from fedpm_lightning.configuration.help import requested_topics

    return requested_topics(arguments[1:])


def explain(command: str, topics: Sequence[str]) -> int:
    """Print help on a command, or on keys and classes; torch is not loaded."""
    from fedpm_lightning.configuration import ConfigurationError
    from fedpm_lightning.configuration.help import help_text

    try:
        print(help_text(command, topics, get_terminal_size((110, 24)).columns), end="")
    except ConfigurationError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def announce(asked: Configuration) -> None:
    """Say what will run, before torch and Lightning take their seconds to load."""
    if os.environ.get("LOCAL_RANK", "0") != "0":
        return
    method = asked.values.get("model", {}).get("method")
    path = method.get("class_path") if isinstance(method, dict) else method
    label, data = asked.values.get("label") or str(path or "fit").rpartition(".")[2], asked.values["data"].get("name")
    on = f" on {data}" if data else ""
    print(f"{asked.values.get('experiment', 'experiment')}: {label}{on} (loading torch)", flush=True)


def load(module: str) -> ModuleType:
    """Import a command's module; its objects are kept for good.

    Looking for garbage among the million objects that libraries make takes a quarter of the import's time, and later on
    as long as many a round.
    """
    if module in sys.modules:
        return sys.modules[module]
    collects = gc.isenabled()
    gc.disable()
    try:
        return import_module(module)
    finally:
        gc.freeze()
        if collects:
            gc.enable()


def check(arguments: Sequence[str]) -> Configuration | None:
    """Return what is asked for where files, keys and names of classes are right, before torch is loaded."""
    from fedpm_lightning.configuration import ConfigurationError
    from fedpm_lightning.configuration.read import read

    try:
        return read(["fit" if arguments[0] == "partition" else arguments[0], *arguments[1:]])
    except ConfigurationError as error:
        print(f"error: {error}\nfedpm {arguments[0]} --help lists the keys", file=sys.stderr)
        return None


if __name__ == "__main__":
    sys.exit(main())
