"""Compare what two clients send and keep, up to rounding: parameters, message, buffers and state.

Parameters are measured against how far they moved from theta, everything else against its own size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from fedpm_lightning.checks import is_mapping, is_sequence
from fedpm_lightning.client.local_round import UpdateAndState
from fedpm_lightning.curvature.matrices.preconditioner import Preconditioner
from fedpm_lightning.types import Params

NOISE = 1e-6
"""Differences below this share of the largest number of a dictionary are rounding of something that ought to be 0."""

TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}
"""Largest difference as a share of the size."""

LOW_PRECISION = 0.1
"""The same where autocast rounds to 8 bits."""


def first_difference(alone: UpdateAndState, together: UpdateAndState, theta: Params) -> str | None:
    """Return what differs between two results of one client; None if nothing does.

    Args:
        alone: Update and state of a client that trained alone.
        together: Those of the same client in a stack.
        theta: Where it started.
    """
    (own, state), (other, other_state) = alone, together
    moved = {k: (p - theta[k]).abs().max() + NOISE * theta[k].abs().max() for k, p in own.params.items() if k in theta}
    found = _differs("", own.params, other.params, moved)
    for name, a, b in (
        ("message", own.message, other.message),
        ("buffer", own.buffers, other.buffers),
        ("state", state, other_state),
    ):
        found = found or _differs(name, a, b, {})
    return found


def _differs(kind: str, a: Mapping[str, object], b: Mapping[str, object], size: Params) -> str | None:
    """Return which tensor of two dictionaries differs, and by how much."""
    ours, theirs = dict(_numbers(kind, a)), dict(_numbers(kind, b))
    if {k: t.shape for k, t in ours.items()} != {k: t.shape for k, t in theirs.items()}:
        return f"{kind or 'the parameters'} has another form when stacked than alone"
    largest = max((float(t.abs().max()) for t in ours.values() if t.numel()), default=0.0)
    for name, own in ours.items():
        if not own.numel():
            continue
        difference = float((theirs[name] - own).abs().max())
        scale = float(size[name]) if name in size else float(own.abs().max()) + NOISE * largest
        if not difference <= _tolerance(own) * scale:
            return f"{name} differs when stacked ({difference:.1e}) than alone"
    return None


def _numbers(name: str, part: object) -> Iterator[tuple[str, Tensor]]:
    """Yield every number of a message or state as a floating tensor, with its name; a preconditioner with its form."""
    if isinstance(part, Preconditioner):
        yield f"{name}, bytes", torch.tensor(float(part.wire_bytes), dtype=torch.float64)
        yield name, part.dense()
    elif isinstance(part, Tensor):
        yield name, part if part.is_floating_point() else part.double()
    elif isinstance(part, bool | int | float):
        yield name, torch.tensor(float(part), dtype=torch.float64)
    elif is_mapping(part):
        for key, inner in part.items():
            yield from _numbers(f"{name} {key}".strip(), inner)
    elif is_sequence(part):
        for place, inner in enumerate(part):
            yield from _numbers(f"{name} {place}".strip(), inner)


def _tolerance(tensor: Tensor) -> float:
    rounded = torch.is_autocast_enabled(tensor.device.type)
    return LOW_PRECISION if rounded else TOLERANCE.get(tensor.dtype, LOW_PRECISION)
