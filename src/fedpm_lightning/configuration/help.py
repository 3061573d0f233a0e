"""`fedpm fit --help`: the experiment's keys in groups; `--help all`, `--help KEY` and `--help CLASS` show the rest.

Read off the sources like the reference of the documentation, so that it answers at once and says the same.
"""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Iterable, Sequence

from fedpm_lightning.configuration import ConfigurationError
from fedpm_lightning.configuration.class_docs import Key, accepts_kwargs, keys, summary
from fedpm_lightning.configuration.class_sources import choices, derives_from, find_class
from fedpm_lightning.configuration.every_key import every_key, groups
from fedpm_lightning.configuration.keys import CLASSES

USAGE = {
    "fit": (
        "usage: fedpm fit [--config NAME_OR_FILE ...] [--KEY VALUE ...]",
        "Run an experiment. Files lie over each other in their order, options over files; the last one wins.",
        "fedpm fit --config quickstart --config method/fedavg --data.partition.alpha 1.0 --run_dir runs/mine",
        "fedpm fit --run_dir runs/mine                 goes on with the run in that folder",
        "fedpm fit --config quickstart --print_config  prints the complete configuration",
    ),
    "validate": (
        "usage: fedpm validate --run_dir runs/NAME [--KEY VALUE ...]",
        "Evaluate a run's best checkpoint on the validation and test split. It takes the keys of fedpm fit.",
    ),
    "test": (
        "usage: fedpm test --run_dir runs/NAME [--KEY VALUE ...]",
        "Evaluate a run's best checkpoint on the test split. It takes the keys of fedpm fit.",
    ),
    "partition": (
        "usage: fedpm partition [--config NAME_OR_FILE ...] [--KEY VALUE ...] [--output FOLDER]",
        "Split the data as fedpm fit would and print who holds what. It takes the keys of fedpm fit; the model may be "
        "left out.",
        "fedpm partition --config quickstart --data.partition.alpha 1.0 --output split",
    ),
}
"""Command -> its usage, what it does, examples."""

_FOOTER = """more
  --help all      every key at full length, Lightning's included
  --help method   the methods; likewise net, partition, preconditioner, callbacks, logger, ...
  --help FedPM    the keys of one class; also of your own: --help my_module.MyMethod
  fedpm configs   the configurations that ship, by name"""


def help_text(command: str, topics: Sequence[str], columns: int = 110) -> str:
    """Return what `fedpm COMMAND --help TOPICS` prints.

    Args:
        command: fit, validate, test or partition.
        topics: Nothing, `all`, a key, a class, or a key and a class.
        columns: Width of the terminal.

    Raises:
        ConfigurationError: If a topic is neither a key nor a class, with what may have been meant.
    """
    if not topics or list(topics) == ["all"]:
        return overview(command, bool(topics), columns)
    key = _key_named(topics[0])
    if len(topics) == 1 and key is not None:
        return key_help(key, columns)
    if len(topics) > 1 and key not in CLASSES:
        raise ConfigurationError(f"{topics[0]} names no class; say fedpm {command} --help KEY, CLASS, or KEY CLASS")
    path = _class_named(topics[-1], key)
    if path is not None:
        return class_help(path, columns)
    known = [*_classes(key), *(name.rpartition(".")[2] for name in every_key())]
    close = difflib.get_close_matches(topics[-1], known, n=1, cutoff=0.6)
    raise ConfigurationError(
        f"{topics[-1]} is neither a key nor a class{f'; did you mean {close[0]}?' if close else ''}\n"
        f"fedpm {command} --help lists the keys"
    )


def overview(command: str, everything: bool, columns: int) -> str:
    """Return the keys in groups, a line each; with `everything`, Lightning's too, at full length."""
    usage, what, *examples = USAGE[command]
    parts = [
        f"{usage}\n\n{textwrap.fill(what, columns)}",
        *(["\n".join(f"  {e}" for e in examples)] if examples else []),
    ]
    for title, names in groups(command, everything).items():
        line = _row if everything else _short_row
        rows = [line(name, every_key()[name], columns) for name in names]
        parts.append("\n".join([title, *rows]))
    return "\n\n".join([*parts, _FOOTER]) + "\n"


def key_help(name: str, columns: int) -> str:
    """Return one key with its type, default and meaning, and the classes that it takes."""
    key = every_key().get(name)
    head = f"--{name}" if key is None else _row(name, key, columns)
    known = _classes(name) if name in CLASSES else {}
    if not known and name in CLASSES and CLASSES[name].default:
        return f"{head}\n\n{class_help(CLASSES[name].default, columns)}"
    if not known:
        return f"{head}\n"
    width = max(len(one) for one in known) + 2
    rows = [f"  {one:{width}}{summary(path)}"[:columns].rstrip() for one, path in known.items()]
    own = f"  or the dotted path of a class of your own: --{name} my_module.MyClass"
    return (
        "\n".join([head, "", "one of", *rows, own, "", f"fedpm fit --help {next(iter(known))} lists the keys of one"])
        + "\n"
    )


def class_help(path: str, columns: int) -> str:
    """Return a class's keys, each with its meaning at full length."""
    name = path.rpartition(".")[2]
    holders = _keys_that_take(path)
    how = [f"  --{key}{'+' if CLASSES[key].many else ''} {name}" for key in holders]
    start = f"{holders[0]}." if holders else ""
    rows = [_row(f"{start}{key.name}", key, columns) for key in keys(path)]
    if accepts_kwargs(path):
        rows.append("  and others, which its source does not tell")
    head = textwrap.fill(f"{name} ({path}): {summary(path)}", columns)
    return "\n".join([head, "", *how, *(rows or ["  it has no keys"])]) + "\n"


def _keys_that_take(path: str) -> list[str]:
    """Return the keys that take a class; for a class from outside, the first key whose base it derives from."""
    takes = {key: choices(spec.modules, spec.base).values() if spec.base else () for key, spec in CLASSES.items()}
    listed = [key for key, paths in takes.items() if path in paths or path == CLASSES[key].default]
    source = find_class(path)
    based = {key: spec.base for key, spec in CLASSES.items() if spec.base}
    fitting = [key for key, base in based.items() if source is not None and derives_from(source, base)]
    return listed or fitting[:1]


def _row(name: str, key: Key, columns: int) -> str:
    """Return a key's name and default, and below them its meaning and type at full length."""
    whole = textwrap.wrap(f"{key.help} [{key.type}]".strip(), max(columns - 8, 40))
    return "\n".join([_left(name, key), *(f"        {line}" for line in whole)])


def _short_row(name: str, key: Key, columns: int) -> str:
    """Return a key in one line: name, default, the first sentence of its meaning and the classes it takes."""
    left = f"{_left(name, key):40}  "
    text = key.help.split(". ")[0].rstrip(".")
    spec = CLASSES.get(name)
    if spec is not None and len(spec.modules) == 1 and not spec.many:
        text += f": {', '.join(choices(spec.modules, spec.base))}"
    room = max(columns - len(left), 1)
    return left + (text if len(text) <= room else text[: room - 1] + "…")


def _left(name: str, key: Key) -> str:
    return f"  --{name} {'(needed)' if key.default is None else key.default}"


def _key_named(word: str) -> str | None:
    """Return the key of that name, or of that last part."""
    known = [*CLASSES, *every_key()]
    bare = word.lstrip("-")
    return next((key for key in known if key == bare), None) or next(
        (key for key in known if key.rpartition(".")[2] == bare), None
    )


def _classes(key: str | None) -> dict[str, str]:
    """Return bare name -> path of the classes that a key takes; of all keys for None."""
    specs = [CLASSES[key]] if key in CLASSES else CLASSES.values()
    found: dict[str, str] = {}
    for spec in specs:
        found = {**choices(spec.modules, spec.base), **found} if spec.base else found
    return found


def _class_named(word: str, key: str | None) -> str | None:
    if "." in word:
        return word if find_class(word) is not None else None
    spelled = {_bare(name): path for name, path in _classes(key).items()}
    return spelled.get(_bare(word))


def _bare(name: str) -> str:
    return name.lower().replace("_", "")


def requested_topics(arguments: Iterable[str]) -> list[str] | None:
    """Return the topics of `--help` on a command line; None without `--help`.

    `--help`, `-h` and `--help TOPIC ...` do, and `--KEY.help CLASS`, as Lightning's commands spell it.
    """
    arguments = list(arguments)
    for place, word in enumerate(arguments):
        name, joined, value = word.partition("=")
        if name in {"-h", "--help"} or (name.startswith("--") and name.endswith(".help")):
            after = [value] if joined else []
            for other in arguments[place + 1 :]:
                if other.startswith("-"):
                    break
                after.append(other)
            return after if name in {"-h", "--help"} else [name[2 : -len(".help")], *after]
    return None
