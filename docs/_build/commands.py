"""The page of the command line, read from the parsers of its subcommands."""

from __future__ import annotations

import argparse
from importlib import import_module

from fedpm_lightning.cli import HELP, COMMANDS

HEAD = """# The command line

`fedpm` is a command with subcommands; each explains itself with `--help`. This page is read from the parsers when it is built.

```text
{help}```

Exit codes are [listed here](errors.md).

## Completion in the shell

`pip install 'fedpm-lightning[completion]'`, and in `~/.bashrc` (zsh: `~/.zshrc`, fish and tcsh: argcomplete's page)

```sh
eval "$(register-python-argcomplete fedpm)"
```

TAB then offers commands, keys, classes with their own keys (`--model.method.` after `--model.method FedAvg` or a file that chooses one),
values, and the names of the configurations and sweeps that ship. [argcomplete](https://pypi.org/project/argcomplete/) asks the program at
each TAB: a script made once (shtab) can't know the keys of the class that a line chooses. It answers without loading torch.

## fit, validate, test

`--help` lists the keys in groups, `--help all` those of Lightning's Trainer too; `--help KEY` tells one key and the classes that it takes,
`--help CLASS` (`--help FedPM`, `--help my_module.MyMethod`) the keys of one class.

`fedpm fit` takes [the configuration keys](configuration.md) and any number of `--config FILE`. `--run_dir FOLDER` alone goes on with the run
in that folder; `validate` and `test` take the same words and evaluate the folder's best checkpoint. `fedpm fit --config FILE
--print_config` prints the complete configuration and ends.

## partition

`fedpm partition` takes the words of `fit`, splits the data and prints who holds what; `--output FOLDER` saves it with pictures.
"""


def page() -> str:
    """Return the page as Markdown."""
    parts = [HEAD.format(help=HELP)]
    for command, module in COMMANDS.items():
        make = getattr(import_module(module), "make_parser", None)
        if make is not None:
            parts.append(section(command, make()))
    return "\n\n".join(parts) + "\n"


def section(command: str, parser: argparse.ArgumentParser) -> str:
    """Return a command's description and its options as a table."""
    rows = [
        f"| {', '.join(f'`{o}`' for o in action.option_strings) or f'`{action.metavar or action.dest}`'} | "
        f"{_values(action)} | {_shown(action.default)} | {_cell(_help(parser, action))} |"
        for action in parser._actions
        if action.dest != "help"
    ]
    table = "\n".join(["| option | values | default | what it does |", "|---|---|---|---|", *rows])
    return f"## {command}\n\n{parser.description or ''}\n\n{table}"


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    values = {**vars(action), "prog": parser.prog}
    return (action.help or "") % values if "%(" in (action.help or "") else (action.help or "").replace("%%", "%")


def _values(action: argparse.Action) -> str:
    if action.choices:
        return ", ".join(f"`{choice}`" for choice in action.choices)
    if action.nargs == 0:
        return "flag"
    return getattr(action.type, "__name__", "text").replace("str", "text")


def _shown(value: object) -> str:
    return "" if value in (None, False, argparse.SUPPRESS, []) else f"`{value}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
