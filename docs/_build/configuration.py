"""The page of every configuration key, from what `fedpm fit --help all` says."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fedpm_lightning.configuration.class_docs import Key, keys, summary
from fedpm_lightning.configuration.every_key import every_key
from fedpm_lightning.configuration.keys import CLASSES, effect
from fedpm_lightning.configuration.class_sources import choices

SECTIONS = {
    "The experiment": "",
    "data": "data.",
    "model": "model.",
    "trainer": "trainer.",
}
HEAD = """# Configuration keys

Every key of `fedpm fit`, read off the sources when this page was built, as `fedpm fit --help` is: in YAML nested (`data:` / `num_clients: 10`), on the
command line with dots (`--data.num_clients 10`). Files lie over each other in their order, options over files.

A key whose type is a class takes its name, or the dotted path of any class, and brings that class's own keys, listed
[below](#classes): `--model.method FedAvg --model.method.lr 0.1`.

The last column: another value changes the **figures** (a resume refuses it, `compare` gives it a row of its own), only their **last
bits** (a resume goes on and says so, `compare` averages), or **nothing** (where and how things run, and what they are called).
"""


def page() -> str:
    """Return the page as Markdown."""
    parts = [HEAD]
    for title, start in SECTIONS.items():
        found = {k: key for k, key in every_key().items() if (k.startswith(start) if start else "." not in k)}
        parts.append(f"## {title}\n\n{table_with_effects(found)}")
    parts.append("## Classes\n\nThe keys of the classes that this package offers, by the key that chooses them.")
    for key, classes in our_classes().items():
        parts.append(f"### {key}")
        for path in classes:
            own = table(keys(path)) if keys(path) else "It has no keys."
            parts.append(f"#### {path.rpartition('.')[2]}\n\n`{path}`: {cell(summary(path))}\n\n{own}")
    return "\n\n".join(parts) + "\n"


def our_classes() -> dict[str, list[str]]:
    """Return key -> the dotted paths of the package's classes that it takes."""
    ours = {key: tuple(m for m in kind.modules if m.startswith("fedpm")) for key, kind in CLASSES.items()}
    found = {key: choices(modules, CLASSES[key].base) for key, modules in ours.items() if modules}
    return {key: list(classes.values()) for key, classes in found.items()}


def table(described: Iterable[Key]) -> str:
    """Return keys as a table."""
    rows = [f"| `{k.name}` | {cell(k.type)} | {default(k.default)} | {cell(k.help)} |" for k in described]
    return "\n".join(["| key | type | default | what it decides |", "|---|---|---|---|", *rows])


def table_with_effects(described: dict[str, Key]) -> str:
    """Return the keys as a table that says, by the table of keys, what another value changes."""
    head, rule, *rows = table(key._replace(name=name) for name, key in described.items()).splitlines()
    effects = [effect(name).name.lower().replace("_", " ") for name in described]
    lines = (f"{row} {changes} |" for row, changes in zip(rows, effects, strict=True))
    return "\n".join([f"{head} another value changes |", f"{rule}---|", *lines])


def default(text: str | None) -> str:
    """Return a default, or that there is none."""
    return "needed" if text is None else text if text in {"null", "true", "false"} else f"`{text}`"


def cell(text: str) -> str:
    """Return text that may stand in a table's cell."""
    return re.sub(r"\s+", " ", text).strip().replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
