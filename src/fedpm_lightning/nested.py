"""Messages and states as nested dictionaries and lists of tensors: their bytes on the wire, their parts, copies."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from fedpm_lightning.checks import is_mapping, is_sequence


@runtime_checkable
class OnWire(Protocol):
    """A message part that knows its own size on the network (a triangle, a sketch, a compressed matrix)."""

    @property
    def wire_bytes(self) -> int:
        """Bytes of the form that is really sent."""
        ...


def wire_bytes(message: object) -> int:
    """Count the bytes of a message: tensors at their dtype, `OnWire` parts in their own form, containers by parts.

    Plain Python numbers count 8 bytes each; None counts nothing.

    Raises:
        TypeError: If a part is of a kind whose size nobody declared.
    """
    if isinstance(message, Tensor):
        return message.nbytes
    if is_mapping(message):
        return sum([part.nbytes if type(part) is Tensor else wire_bytes(part) for part in message.values()])
    if is_sequence(message):
        return sum([wire_bytes(part) for part in message])
    if isinstance(message, bool | int | float):
        return 8
    if message is None:
        return 0
    # Not isinstance(message, OnWire): looking for a protocol's attributes takes a hundred times as long.
    size = getattr(message, "wire_bytes", None)
    if isinstance(size, int):
        return size
    raise TypeError(f"cannot count the bytes of a {type(message).__name__}: give it a `wire_bytes` property")


def named_leaves(value: object, name: str = "") -> Iterator[tuple[str, object]]:
    """Yield what stands in nested dictionaries, lists and tuples, with a dotted name."""
    if is_mapping(value):
        parts = value.items()
    elif is_sequence(value):
        parts = enumerate(value)
    else:
        yield name, value
        return
    for key, part in parts:
        yield from named_leaves(part, f"{name}.{key}" if name else str(key))


def map_leaves(change: Callable[[Any], Any], value: object) -> Any:
    """Return nested dictionaries, lists and tuples (as lists) with `change` applied to all else that they hold."""
    if isinstance(value, Tensor):  # first, since most leaves are
        return change(value)
    if is_mapping(value):
        return {key: map_leaves(change, part) for key, part in value.items()}
    if is_sequence(value):
        return [map_leaves(change, part) for part in value]
    return change(value)


def copy_nested(value: object, device: torch.device | None = None) -> Any:
    """Return dictionaries, lists and tuples (as lists) with detached copies of their tensors.

    Args:
        value: What is copied; anything else than the above (a factor, a number) by `copy.deepcopy`.
        device: Where the copies lie; None: where the tensors lie.
    """

    def copied(leaf: object) -> object:
        if isinstance(leaf, Tensor):
            return leaf.detach().to(leaf.device if device is None else device, copy=True)
        return copy.deepcopy(leaf)

    return map_leaves(copied, value)
