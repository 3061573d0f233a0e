"""What can go wrong at a client: NaN or Inf in its upload, and any error while it trains, named by round and client.

All parts of an upload are checked with one wait for the device; only a bad one is searched part by part.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from fedpm_lightning.checks import is_mapping, is_sequence
from fedpm_lightning.curvature.matrices.damping import CurvatureError
from fedpm_lightning.errors import BadClientError, DivergedClientError
from fedpm_lightning.types import ClientUpdate

NUMERICAL = (CurvatureError, FloatingPointError)
"""What `on_bad_client: drop` drops; every other error is a mistake in the code and stops the run."""


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether no tensor holds NaN or Inf; the host waits for the device once."""
    parts = [t for t in tensors if t.is_floating_point()]
    if not parts:
        return True
    # NaN and Inf survive a sum, which is five times as fast; only a sum that overflowed needs the longer look.
    if all(t.device.type == "cpu" for t in parts):  # nothing waits here, and one by one is faster
        return all(math.isfinite(t.sum().item()) or bool(t.isfinite().all()) for t in parts)
    if bool(torch.stack([t.sum().isfinite() for t in parts]).all()):
        return True
    return bool(torch.stack([t.isfinite().all() for t in parts]).all())


def check_finite(update: ClientUpdate) -> None:
    """Check loss, parameters, message and buffers of an update.

    Raises:
        FloatingPointError: If one of them is NaN or infinite; the message names the parts.
    """
    loss = update.metrics.get("loss", 0.0)
    if not math.isfinite(loss):
        raise FloatingPointError(f"the local training loss is {loss}")
    uploaded: dict[str, Any] = {**update.params, **update.message, **update.buffers}
    plain = all(type(part) is Tensor for part in uploaded.values())
    parts: dict[str, Tensor] = uploaded if plain else dict(_leaves("", uploaded))
    if all_finite(parts.values()):
        return
    bad = [name for name, tensor in parts.items() if not all_finite([tensor])]
    more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
    raise FloatingPointError(f"the upload has NaN or Inf in {', '.join(bad[:3])}{more}")


def is_finite(update: ClientUpdate) -> bool:
    """Whether loss, parameters, message and buffers of an update are finite."""
    try:
        check_finite(update)
    except FloatingPointError:
        return False
    return True


def client_error(round: int, client: int, cause: Exception) -> BadClientError:
    """Return the error that stops the run because of one client.

    Args:
        round: 0-based round.
        client: The client's id.
        cause: What was raised while it trained, or by `check_finite`.
    """
    where = f"round {round + 1}, client {client}"
    if not isinstance(cause, NUMERICAL):
        return BadClientError(f"{where}: {type(cause).__name__}: {cause}")
    kind = DivergedClientError if isinstance(cause, FloatingPointError) else BadClientError
    advice = "Lower the learning rate, raise the damping, or drop such clients with --model.on_bad_client drop"
    return kind(f"{where}: {cause}. {advice}")


def _leaves(name: str, part: object) -> Iterator[tuple[str, Tensor]]:
    """Yield every number of a message as a tensor, with a dotted name."""
    if isinstance(part, Tensor):
        yield name, part
    elif isinstance(part, float):
        yield name, torch.tensor(part, dtype=torch.float64)
    elif is_mapping(part):
        for key, inner in part.items():
            yield from _leaves(f"{name}.{key}" if name else str(key), inner)
    elif is_sequence(part):
        for number, inner in enumerate(part):
            yield from _leaves(f"{name}.{number}", inner)
    elif hasattr(part, "wire_bytes"):  # a factor or a compressed matrix: its tensors are its attributes
        yield from _leaves(name, vars(part))
