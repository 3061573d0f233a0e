"""When a run counts as diverged: NaN or Inf in the global model, a loss above its bound."""

from __future__ import annotations

from fedpm_lightning.client.faults import all_finite
from fedpm_lightning.errors import DivergedError
from fedpm_lightning.types import Params


def check_model(round: int, params: Params) -> None:
    """Check the aggregate, or theta; a checkpoint of the round has not been written yet.

    Args:
        round: 0-based round.
        params: The tensors.

    Raises:
        DivergedError: If one of them is not finite.
    """
    if not all_finite(params.values()):
        raise DivergedError(
            f"round {round + 1}: the global model has NaN or Inf; the last checkpoint stays. Lower the learning "
            "rate or raise the damping"
        )


def check_loss(round: int, name: str, value: float | None, bound: float | None) -> None:
    """Check one loss of a round.

    Raises:
        DivergedError: If it is above `bound`, or NaN.
    """
    if bound is not None and value is not None and not value <= bound:
        raise DivergedError(
            f"round {round + 1}: {name} {value:.4g} is above model.max_loss {bound:g}; the last checkpoint stays. "
            "Lower the learning rate, or raise the bound"
        )
