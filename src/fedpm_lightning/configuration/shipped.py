"""The configurations and sweeps that come with the package, by name: `quickstart`, `method/fedavg`, `digits`.

They stand in configs/ and sweeps/ of the repository; a wheel carries both folders inside of the package (setup.py).
"""

from __future__ import annotations

import difflib
import itertools
import re
from pathlib import Path, PurePath
from typing import Literal

from fedpm_lightning.configuration import ConfigurationError

Kind = Literal["configs", "sweeps"]

_PACKAGE = Path(__file__).resolve().parents[1]


def folder(kind: Kind) -> Path:
    """Return where the shipped files are: inside of an installed package, else beside src/ in a checkout."""
    inside = _PACKAGE / kind
    return inside if inside.is_dir() else _PACKAGE.parents[1] / kind


def shipped(kind: Kind) -> dict[str, Path]:
    """Return name -> file, `method/fedavg` -> .../configs/method/fedavg.yaml, folders after the files beside them."""
    top = folder(kind)
    files = sorted(top.rglob("*.yaml"), key=lambda file: (file.parent, file.stem))
    return {file.relative_to(top).with_suffix("").as_posix(): file for file in files}


def locate(kind: Kind, given: str | Path) -> Path:
    """Return the file that a path or the name of a shipped file means; a file that is there wins.

    A path into a repository's folder (`configs/quickstart.yaml`) means the shipped file where there is no such folder.

    Raises:
        ConfigurationError: If there is neither, with the name that may have been meant.
    """
    path = Path(given)
    if path.exists() and not path.is_dir():
        return path
    known, name = shipped(kind), _name(kind, given)
    if name in known:
        return known[name]
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    ends = [other for other in known if PurePath(other).name == PurePath(name).name]
    meant = f"; did you mean {(ends or close)[0]}?" if ends or close else ""
    raise ConfigurationError(
        f"{given} cannot be read (no such file in {Path.cwd()}), and nothing that ships has that name{meant}\n"
        "fedpm configs lists the names"
    )


def _name(kind: Kind, given: str | Path) -> str:
    return PurePath(given).as_posix().removeprefix(f"{kind}/").removesuffix(".yaml")


def headline(file: Path) -> str:
    """Return the first sentence of a file's head comment."""
    lines = itertools.takewhile(lambda line: line.startswith("#"), file.read_text(encoding="utf-8").splitlines())
    text = " ".join(line.removeprefix("#").strip() for line in lines)
    return re.split(r"(?<=\.)(?<!et al\.) ", text)[0].strip()
