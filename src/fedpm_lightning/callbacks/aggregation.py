"""The aggregation as a callback, so that YAML can put a subclass (robust aggregation, an attack study) in its place."""

from __future__ import annotations

from fedpm_lightning import round as core
from fedpm_lightning.callbacks.base import FederatedCallback
from fedpm_lightning.round import Federation


class Aggregation(core.Aggregation, FederatedCallback):
    """Plain aggregation as the method defines it; `FederatedModule` adds it where the trainer has no other."""

    records = ("train/loss", "clients/returned", "clients/dropped")


def check_buffers(federation: Federation, why: str) -> None:
    """Check that no running statistics are mixed by a plain mean beside the aggregation.

    Args:
        federation: The experiment.
        why: What the aggregation does, for the message.

    Raises:
        ValueError: If they are.
    """
    if federation.buffer_policy == "mix" and any(b.is_floating_point() for b in federation.net.buffers()):
        raise ValueError(
            f"{why}, and the network's running statistics are mixed by a plain mean: set --model.buffer_policy local "
            "or freeze, or use GroupNorm"
        )
