"""What pyproject.toml can't say: a wheel carries configs/, sweeps/ and the commit it was built from.

The folders stay at the root of the repository, where people look for them; an editable installation finds them there.
"""

import re
import runpy
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
PACKAGE = ROOT / "src" / "fedpm_lightning"
REPOSITORY = "https://github.com/fedpm-lightning/fedpm-lightning"
_VERSION = runpy.run_path(str(PACKAGE / "version.py"))


def ship(package: Path) -> None:
    """Copy configs/ and sweeps/ into a built package, and record the commit there."""
    for name in ("configs", "sweeps"):
        shutil.rmtree(package / name, ignore_errors=True)  # an older build may have left files that are gone
        shutil.copytree(ROOT / name, package / name)
    record(package)


def record(package: Path) -> None:
    """Write the commit into a built package or an archive of the sources."""
    (package / _VERSION["RECORD"]).write_text(_VERSION["commit"](PACKAGE) + "\n", encoding="utf-8")


def readme() -> str:
    """Return the README with links that work outside of the repository."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"(!\[[^\]]*\]\()(?!\w+:|#)", rf"\1{REPOSITORY}/raw/main/", text)
    return re.sub(r"((?<!!)\[[^\]]*\]\()(?!\w+:|#)", rf"\1{REPOSITORY}/blob/main/", text)


class BuildWithConfigurations(build_py):
    """Build the package, and put beside its modules what ships with them."""

    def run(self) -> None:
        """Build; an editable installation reads everything from the repository."""
        super().run()
        if not self.editable_mode:
            ship(Path(self.build_lib) / PACKAGE.name)


class SourceArchive(sdist):
    """An archive of the sources, from which the wheel of the same commit can be built."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Lay out the archive, and record the commit in it."""
        super().make_release_tree(base_dir, files)
        record(Path(base_dir) / PACKAGE.relative_to(ROOT))


if __name__ == "__main__":
    setup(
        long_description=readme(),
        long_description_content_type="text/markdown",
        cmdclass={"build_py": BuildWithConfigurations, "sdist": SourceArchive},
    )
