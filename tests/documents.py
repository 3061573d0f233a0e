"""Pages as programs: their code blocks, in order, in one folder; commands as they stand, only made smaller.

```bash              every line is typed
```python            run, all of a page in one namespace
```LANG title="F"    written to the file F
```sh                needs what a test has not (a GPU, a scheduler, an account, a download): each line has a check below
```text, or none     output, or a formula
"""

from __future__ import annotations

import itertools
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fedpm_lightning.cli import main
from fedpm_lightning.configuration import ConfigurationError
from fedpm_lightning.configuration.shipped import locate

REPO = Path(__file__).resolve().parent.parent
PAGES = ["README.md", *sorted(p.relative_to(REPO).as_posix() for p in (REPO / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)(?: +title=\"([^\"]+)\")?\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
BUILT = {
    "docs/changelog.md", "docs/reference/cli.md", "docs/reference/configuration.md", "docs/reference/errors.md"
}  # fmt: skip
"""Pages that docs/_build/stage.py makes."""
KNOWN = {"bash", "python", "sh", "text", "yaml", ""}


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    language: str
    title: str
    text: str

    @property
    def commands(self) -> list[str]:
        """Its lines without comments, continued lines joined."""
        lines = [line.partition(" #")[0].strip() for line in self.text.replace("\\\n", " ").splitlines()]
        return [line for line in lines if line and not line.startswith("#")]


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page."""
    return [Block(*match) for match in FENCE.findall((REPO / page).read_text())]


def play(page: str, smaller: Callable[[list[str]], list[str]]) -> Iterator[str]:
    """Run a page in the current folder; yield what went wrong."""
    names: dict[str, object] = {}
    for block in blocks(page):
        if block.title:
            Path(block.title).write_text(block.text)
        elif block.language == "python":
            exec(compile(block.text, page, "exec"), names)
        elif block.language == "bash":
            for line in block.commands:
                words = shlex.split(line)
                if words[0] == "fedpm" and (code := main(smaller(words[1:]))):
                    yield f"{line}: exit code {code}"
                elif words[0] not in ("fedpm", "make"):
                    yield f"{line}: a bash block holds fedpm and make alone; others are sh blocks"


def unrun(line: str) -> str | None:
    """What is wrong with a line that no test can type, as far as that can be told."""
    words = shlex.split(line)
    while "=" in words[0]:
        words = words[1:]
    check = CHECKS.get(words[0])
    return f"{line}: no check for {words[0]}" if check is None else check(words)


def _pip(words: list[str]) -> str | None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    extras = {one for group in re.findall(r"\[([\w,]+)\]", words[-1]) for one in group.split(",")}
    unknown = extras - set(project["optional-dependencies"])
    return f"no extra {unknown}" if unknown else None


def _files(words: list[str]) -> str | None:
    named = [w for w in words if re.match(r"(configs|sweeps|cluster|experiments|benchmarks)/", w) and "NAME" not in w]
    missing = [word for word in named if not (REPO / word).exists()]
    return f"no file {missing}" if missing else None


def _fedpm(words: list[str]) -> str | None:
    """What a line names by its path or name must ship."""
    named = [("configs", word) for option, word in itertools.pairwise(words) if option == "--config"]
    named += [("sweeps", word) for word in words[2:3] if words[1] == "sweep" and word not in {"FILE", "my_sweep.yaml"}]
    for kind, name in named:
        try:
            locate(kind, name)
        except ConfigurationError as error:
            return str(error)
    return _files(words)


def _module(words: list[str]) -> str | None:
    if words[1:2] != ["-m"] or words[2] in ("venv", "pytest"):
        return None
    path = REPO / words[2].replace(".", "/")
    return None if path.with_suffix(".py").is_file() or path.is_dir() else f"no module {words[2]}"


def _make(words: list[str]) -> str | None:
    targets = re.findall(r"^([\w-]+):", (REPO / "Makefile").read_text(), flags=re.MULTILINE)
    return None if set(words[1:]) <= set(targets) else f"no target {words[1:]}"


def _docker(words: list[str]) -> str | None:
    stages = re.findall(r"^FROM .* AS (\w+)", (REPO / "Dockerfile").read_text(), flags=re.MULTILINE)
    target = words[words.index("--target") + 1] if "--target" in words else "cpu"
    return None if target in stages else f"no stage {target}"


CHECKS: dict[str, Callable[[list[str]], str | None]] = {
    "pip": _pip,
    "python": _module,
    "make": _make,
    "fedpm": _fedpm,
    **dict.fromkeys(["wandb", "tensorboard", "sbatch", "source", "git", "apptainer"], _files),
    "docker": _docker,
    **dict.fromkeys(["experiments/test1.sh", "experiments/cifar10_trial.sh"], _files),
}
"""First word -> what is checked of a line that is not typed."""


def slug(heading: str) -> str:
    """The anchor of a heading, as code hosts and mkdocs write it."""
    plain = re.sub(r"[`*\\]|\]\([^)]*\)|\[", "", heading).strip().lower()
    return re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", plain))
