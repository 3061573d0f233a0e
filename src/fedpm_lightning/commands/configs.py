"""The command `fedpm configs`: lists the files that ship with the package, shows one, or copies it for editing."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath

from fedpm_lightning.configuration import ConfigurationError
from fedpm_lightning.configuration.shipped import Kind, folder, headline, locate, shipped

DESCRIPTION = """List the configurations and sweeps that ship with the package, show one, or copy them.

  fedpm configs                                all names, with a line about each
  fedpm configs method/fedpm                   the file itself
  fedpm configs --copy .                       all of them, as ./configs and ./sweeps, to be changed
  fedpm configs quickstart digits --copy .     these two

A name stands wherever a file does: fedpm fit --config quickstart --config method/fedavg, fedpm sweep digits. A file of
yours that lies at that path wins: `configs/quickstart.yaml` is your copy where there is one, else the shipped file."""

KINDS: tuple[Kind, ...] = ("configs", "sweeps")


def make_parser() -> argparse.ArgumentParser:
    """Return the parser."""
    parser = argparse.ArgumentParser(
        prog="fedpm configs", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="show these, or copy these alone")
    parser.add_argument("--copy", type=Path, metavar="FOLDER", help="copy into FOLDER/configs and FOLDER/sweeps")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """List, show or copy.

    Args:
        argv: The arguments after `fedpm configs`; default: the command line.

    Returns:
        0; 2 where a name is unknown or a file of another content is in the way.
    """
    args = make_parser().parse_args(list(sys.argv[2:] if argv is None else argv))
    try:
        chosen = [find(name) for name in args.names] or [f for kind in KINDS for f in shipped(kind).values()]
        if args.copy is not None:
            print(copy(chosen, args.copy))
        elif args.names:
            print("\n".join(file.read_text(encoding="utf-8") for file in chosen), end="")
        else:
            print("\n\n".join(listing(kind) for kind in KINDS))
    except (ConfigurationError, PermissionError, FileExistsError, NotADirectoryError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def find(name: str) -> Path:
    """Return the shipped file of a name: of a configuration, else of a sweep.

    Raises:
        ConfigurationError: If there is none.
    """
    bare = PurePath(name).with_suffix("").as_posix()
    for kind in KINDS:
        if (file := shipped(kind).get(bare.removeprefix(f"{kind}/"))) is not None:
            return file
    return locate("configs", name)


def listing(kind: Kind) -> str:
    """Return the names with a line about each, as wide as the terminal, a blank line between folders."""
    columns = shutil.get_terminal_size((1000, 0)).columns  # a pipe takes whole lines
    groups: dict[str, list[str]] = {}
    files = shipped(kind)
    width = max((len(name) for name in files), default=0)
    for name, file in files.items():
        groups.setdefault(name.rpartition("/")[0], []).append(f"  {name:{width}}  {headline(file)}"[:columns])
    use = {"configs": "fedpm fit --config NAME", "sweeps": "fedpm sweep NAME"}[kind]
    return f"{kind} ({use}), in {folder(kind)}\n" + "\n\n".join("\n".join(lines) for lines in groups.values())


def copy(files: Iterable[Path], target: Path) -> str:
    """Copy shipped files to where a repository has them; return a line that says so.

    Raises:
        ConfigurationError: If a file of another content is there: nothing is copied then.
    """
    pairs = [(file, target / kind / file.relative_to(folder(kind)))
             for file in files for kind in KINDS if file.is_relative_to(folder(kind))]  # fmt: skip
    taken = [str(to) for file, to in pairs if to.exists() and to.read_bytes() != file.read_bytes()]
    if taken:
        more = f" and {len(taken) - 1} more" if len(taken) > 1 else ""
        raise ConfigurationError(f"{taken[0]}{more} is there with another content; nothing was copied")
    for file, to in pairs:
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, to)
    number = "1 file" if len(pairs) == 1 else f"{len(pairs)} files"
    return f"copied {number} into {', '.join(sorted({str(to.parent) for _, to in pairs}))}"
