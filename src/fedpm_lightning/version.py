"""The version, and the commit that it was built from. setup.py runs this file: it imports nothing of the package."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

RECORD = "commit.txt"
"""Beside this file, in a wheel and in an archive of the sources: the commit at build time."""


def commit(package: Path) -> str:
    """Return the commit, `-dirty` added where files differ from it: as built, or of the checkout; else 'unknown'.

    Args:
        package: The package's folder, which holds RECORD or lies in a checkout's src/.
    """
    record, checkout = package / RECORD, package.parents[1]
    if record.is_file():
        return record.read_text(encoding="utf-8").strip()
    if not (checkout / ".git").exists():  # somebody else's repository may lie further up
        return "unknown"
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


@cache
def own_commit() -> str:
    """Return the commit of this package."""
    return commit(Path(__file__).resolve().parent)


def version_line() -> str:
    """Return what `fedpm --version` prints."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        number = version("fedpm-lightning")
    except PackageNotFoundError:  # run from the sources, without an installation
        number = "(not installed)"
    return f"fedpm-lightning {number}, commit {own_commit()}"
