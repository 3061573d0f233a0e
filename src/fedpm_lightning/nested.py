"""Messages and states as nested dictionaries and lists of tensors: their bytes on the wire, their parts, copies."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor


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
    if isinstance(message, dict) or isinstance(message, Mapping):  # noqa: SIM101 (a dict is told at a tenth of the cost)
        parts = cast("Mapping[object, object]", message).values()
        return sum([part.nbytes if type(part) is Tensor else wire_bytes(part) for part in parts])
    if isinstance(message, list | tuple):
        return sum([wire_bytes(part) for part in cast("Sequence[object]", message)])
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
    if isinstance(value, Mapping):
        parts = [(str(key), part) for key, part in cast("Mapping[object, object]", value).items()]
    elif isinstance(value, list | tuple):
        parts = [(str(number), part) for number, part in enumerate(cast("Sequence[object]", value))]
    else:
        yield name, value
        return
    for key, part in parts:
        yield from named_leaves(part, f"{name}.{key}" if name else key)


def copy_nested(value: Any, device: torch.device | None = None) -> Any:
    """Return dictionaries, lists and tuples (as lists) with detached copies of their tensors.

    Args:
        value: What is copied; anything else than the above (a factor, a number) by `copy.deepcopy`.
        device: Where the copies lie; None: where the tensors lie.
    """
    if isinstance(value, Tensor):
        return value.detach().to(value.device if device is None else device, copy=True)
    if isinstance(value, Mapping):
        return {key: copy_nested(part, device) for key, part in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [copy_nested(part, device) for part in cast("Sequence[Any]", value)]
    return copy.deepcopy(value)
