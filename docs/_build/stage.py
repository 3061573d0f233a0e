"""`python docs/_build/stage.py` lays the site's pages out in build/docs: those of docs/, and those read from the code.

Links out of docs/ (a batch file, the tests) become the file's path, since the site holds pages only.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).absolute().parent
ROOT = HERE.parents[1]
DOCS, OUT = ROOT / "docs", ROOT / "build" / "docs"
if str(HERE) not in sys.path:
    sys.path[:0] = [str(HERE), str(ROOT / "src")]

import commands  # noqa: E402
import configuration  # noqa: E402
import errors  # noqa: E402


def changelog() -> str:
    """Return CHANGELOG.md."""
    return (ROOT / "CHANGELOG.md").read_text()


GENERATED: dict[str, Callable[[], str]] = {
    "reference/configuration.md": configuration.page,
    "reference/cli.md": commands.page,
    "reference/errors.md": errors.page,
    "changelog.md": changelog,
}


def pages() -> list[Path]:
    """Return the pages that are written by hand, relative to docs/."""
    return sorted(p.relative_to(DOCS) for p in DOCS.rglob("*.md") if "_build" not in p.parts)


def within(text: str, page: Path) -> str:
    """Return a page whose links to files outside docs/ are their paths."""

    def link(match: re.Match[str]) -> str:
        target = match[2].partition("#")[0]
        if not target or "://" in target:
            return match[0]
        file = Path(os.path.normpath(DOCS / page.parent / target))
        if file.is_relative_to(DOCS):
            return match[0]
        path = file.relative_to(ROOT)
        return f"`{path}`" if match[1].strip("`") in (str(path), path.name, f"{path}/") else f"{match[1]} (`{path}`)"

    return re.sub(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)", link, text)


def main() -> None:
    """Write build/docs anew."""
    shutil.rmtree(OUT, ignore_errors=True)
    for page in pages():
        (OUT / page).parent.mkdir(parents=True, exist_ok=True)
        (OUT / page).write_text(within((DOCS / page).read_text(), page))
    for path, make in GENERATED.items():
        (OUT / path).parent.mkdir(parents=True, exist_ok=True)
        (OUT / path).write_text(make())
    for folder in ("figures", "assets"):
        shutil.copytree(DOCS / folder, OUT / folder)


if __name__ == "__main__":
    main()
