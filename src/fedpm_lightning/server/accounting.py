"""epsilon of noised rounds, by the library dp-accounting (extra `privacy`): Renyi differential privacy, composed.

    replace_one            one client's whole data against another client's; N and S are public
    add_or_remove_one      one client more or less; only where all N clients take part in every round

The library's noise multiplier is the noise over the SENSITIVITY. A sum of contributions clipped to C changes by up to
2 C when a client is replaced, and by up to C when one comes or goes; so the multiplier z = sigma / C of this package
counts as z / 2 under the first and as z under the second. A cohort is drawn without replacement, of fixed size, in each
round: `SampledWithoutReplacementDpEvent` (Wang, Balle, Kasiviswanathan: Subsampled Renyi Differential Privacy,
AISTATS 2019), which the library knows for replacement alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Literal, TypeAlias

Adjacency: TypeAlias = Literal["replace_one", "add_or_remove_one"]


def check_adjacency(adjacency: Adjacency, num_clients: int, size: int) -> None:
    """Check that the accountant knows the way in which cohorts are drawn.

    Raises:
        ValueError: If it does not.
    """
    if adjacency == "add_or_remove_one" and size < num_clients:
        raise ValueError(
            f"adjacency add_or_remove_one needs all clients in each round, and {size} of {num_clients} take part: use "
            "replace_one, or --data.participation 1"
        )


def epsilon(
    noise_multiplier: float, rounds: int, num_clients: int, size: int, delta: float, adjacency: Adjacency
) -> float:
    """Return epsilon after `rounds` rounds.

    Args:
        noise_multiplier: z, the noise of one round's sum over its clipping bound; 0: infinity.
        rounds: T.
        num_clients: N.
        size: S, the cohort's.
        delta: delta.
        adjacency: Which two experiments must look alike.
    """
    if noise_multiplier == 0:
        return math.inf
    orders, one = _one_round(noise_multiplier, num_clients, size, adjacency)
    from dp_accounting.rdp import compute_epsilon

    return float(compute_epsilon(orders, [rounds * rdp for rdp in one], delta)[0])


@cache
def _one_round(
    noise_multiplier: float, num_clients: int, size: int, adjacency: Adjacency
) -> tuple[Sequence[float], Sequence[float]]:
    """Return the Renyi orders, and one round's divergence at each; it takes half a second, and adds up over rounds.

    Raises:
        ImportError: If the library is not there.
    """
    try:
        import dp_accounting as dp
    except ImportError:
        raise ImportError("epsilon needs dp-accounting: pip install 'fedpm-lightning[privacy]'") from None

    if adjacency == "replace_one":
        relation = dp.NeighboringRelation.REPLACE_ONE
        event = dp.SampledWithoutReplacementDpEvent(num_clients, size, dp.GaussianDpEvent(noise_multiplier / 2))
    else:
        relation, event = dp.NeighboringRelation.ADD_OR_REMOVE_ONE, dp.GaussianDpEvent(noise_multiplier)
    accountant = dp.rdp.RdpAccountant(neighboring_relation=relation).compose(event)
    return accountant.orders.tolist(), accountant.rdp.tolist()
