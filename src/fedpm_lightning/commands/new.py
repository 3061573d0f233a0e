"""The command `fedpm new`: a skeleton of a method, a data set or a callback, in three small files that run at once."""

from __future__ import annotations

import argparse
import keyword
import re
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from fedpm_lightning.configuration import ConfigurationError

DESCRIPTION = """Write a method, a data set or a callback of your own: a module, its tests and a YAML file.

  fedpm new method my_method        my_method.py, test_my_method.py, my_method.yaml
  fedpm new data my_data
  fedpm new callback my_callback

They work as they are; change them from there. The module is found from the folder in which you type `fedpm`."""

SKELETONS = Path(__file__).parent / "skeletons"
FILES = {"module": "{}.py", "test": "test_{}.py", "config": "{}.yaml"}
"""Part of a skeleton -> name of the file it becomes."""


def make_parser() -> argparse.ArgumentParser:
    """Return the parser."""
    parser = argparse.ArgumentParser(
        prog="fedpm new", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=sorted(path.name for path in SKELETONS.iterdir()), help="what to write")
    parser.add_argument("name", metavar="NAME", help="of the module: letters, digits and underscores")
    parser.add_argument("--folder", type=Path, default=Path(), help="where to write; it is made if need be")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Write a skeleton.

    Args:
        argv: The arguments after `fedpm new`; default: the command line.

    Returns:
        0; 2 where the name cannot be a module's, or a file is in the way.
    """
    args = make_parser().parse_args(list(sys.argv[2:] if argv is None else argv))
    try:
        module, _ = names(args.name)
        written = write(args.kind, args.name, args.folder)
    except (ConfigurationError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    enter = f"cd {args.folder}\n  " if args.folder != Path() else ""
    print(f"wrote {', '.join(map(str, written))}; next:")
    print(f"  {enter}fedpm fit --config quickstart --config {module}.yaml")
    print(f"  python -m pytest test_{module}.py")
    return 0


def names(name: str) -> tuple[str, str]:
    """Return the names of module and class, my_method and MyMethod, from either of them.

    Raises:
        ConfigurationError: If it is no name, or one that Python has given to something else.
    """
    module = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    if not re.fullmatch(r"[a-z][a-z0-9_]*", module) or keyword.iskeyword(module):
        raise ConfigurationError(f"{name!r} cannot be a module's name: use letters, digits and _, as in my_method")
    return module, "".join(part.capitalize() for part in module.split("_"))


def write(kind: str, name: str, folder: Path) -> list[Path]:
    """Write a skeleton under a name; return the files.

    Raises:
        ConfigurationError: If the name cannot be taken, or one of the files is there: nothing is written then.
    """
    module, class_name = names(name)
    files = {folder / pattern.format(module): SKELETONS / kind / f"{part}.txt" for part, pattern in FILES.items()}
    taken = [str(file) for file in files if file.exists()]
    if taken:
        raise ConfigurationError(f"{', '.join(taken)} exists; nothing was written. Choose another name or --folder")
    if find_spec(module) is not None:
        raise ConfigurationError(f"a module {module!r} is installed and would be imported instead; choose another name")
    folder.mkdir(parents=True, exist_ok=True)
    for file, skeleton in files.items():
        text = skeleton.read_text(encoding="utf-8")
        file.write_text(text.replace("my_part", module).replace("MyPart", class_name), encoding="utf-8")
    return list(files)
