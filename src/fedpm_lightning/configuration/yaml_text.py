"""YAML for configurations: 1e-3 is a number, duplicate keys are errors, and an error names its file and line."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from fedpm_lightning.checks import is_mapping
from fedpm_lightning.configuration import ConfigurationError

_FLOAT = re.compile(
    r"[-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+]?[0-9]+)?$|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$"
    r"|[-+]?\.[0-9_]+(?:[eE][-+]?[0-9]+)?$|[-+]?\.(?:inf|Inf|INF)$|\.(?:nan|NaN|NAN)$"
)


class _Loader(yaml.SafeLoader):
    """YAML 1.1 with YAML 1.2's floats, in which duplicate keys are errors."""


# PyYAML's float needs a point and a signed exponent: `1e-3` would be a word. Dates are words here.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":float", ":timestamp"))]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Hashable, Any]:
    seen: dict[Hashable, int] = {}
    for key_node, _ in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue
        key, line = loader.construct_object(key_node, deep=True), key_node.start_mark.line + 1
        if key in seen:
            raise ConfigurationError(f"line {line}: {key} stands in line {seen[key]} already; leave one of the two")
        seen[key] = line
    loader.flatten_mapping(node)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


def load(text: str) -> Any:
    """Read YAML.

    Raises:
        ConfigurationError: If it is none, or a key stands twice.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as cause:
        line = f"line {cause.problem_mark.line + 1}: " if cause.problem_mark else ""
        raise ConfigurationError(f"{line}this is not YAML ({cause.problem})") from None
    except (yaml.YAMLError, TypeError) as cause:  # TypeError: a key that is a list
        raise ConfigurationError(f"this is not YAML ({cause})") from None


def read_file(path: str | Path) -> dict[str, Any]:
    """Read a configuration file; dotted keys, as W&B's `${args_json_file}` writes them, become branches.

    Raises:
        ConfigurationError: Naming the file, and what is wrong with it.
    """
    try:
        content = load(Path(path).read_text(encoding="utf-8"))
    except OSError as cause:
        raise ConfigurationError(f"{path} cannot be read ({cause.strerror}); paths start at {Path.cwd()}") from None
    except UnicodeDecodeError as cause:
        raise ConfigurationError(f"{path} is not text ({cause.reason})") from None
    except ConfigurationError as cause:
        raise ConfigurationError(f"{path}: {cause}") from None
    if content is not None and not is_mapping(content):
        raise ConfigurationError(f"{path} holds {str(content)[:40]!r}; a configuration has keys, such as `rounds: 20`")
    return branches(content or {})


def branches(layer: Mapping[str, object]) -> dict[str, Any]:
    """Write dotted keys as branches."""
    nested: dict[str, Any] = {}
    for key, value in layer.items():
        head, *rest = str(key).split(".")
        for part in reversed(rest):
            value = {part: value}
        nested[head] = _joined(nested[head], value) if head in nested else value
    return nested


def _joined(below: object, above: object) -> Any:
    if not (is_mapping(below) and is_mapping(above)):
        return above
    return {**below, **{key: _joined(below[key], value) if key in below else value for key, value in above.items()}}
