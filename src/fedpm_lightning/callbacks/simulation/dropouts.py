"""Clients that are away, and clients that are slow: the same ones for every method with the same seed.

fedpm fit ... --trainer.callbacks+='{class_path: fedpm_lightning.callbacks.Dropouts, init_args: {rate: 0.3}}'
"""

from __future__ import annotations

from fedpm_lightning.callbacks.base import FederatedCallback
from fedpm_lightning.callbacks.simulation.changed_data import ChangedData
from fedpm_lightning.checks import share
from fedpm_lightning.rng import numpy_generator
from fedpm_lightning.round import Round
from fedpm_lightning.types import ClientData, LocalWork


class Dropouts(FederatedCallback):
    """Every sampled client is away with probability `rate`: it gets no broadcast, trains nothing and sends nothing.

    The weights of a round are those of the clients that returned.

    Args:
        rate: Probability in [0, 1], drawn for each client in each round.

    Raises:
        ValueError: If `rate` is outside its range.
    """

    records = ()

    def __init__(self, rate: float) -> None:
        self.rate = share("rate", rate)

    def on_round_start(self, round: Round) -> None:
        """Take the clients that are away out of the cohort."""
        cohort, seed = round.cohort, round.federation.seed
        cohort.clients = [c for c in cohort.clients if not hit(self.rate, seed, "dropout", cohort.round, c.client)]


class Stragglers(FederatedCallback):
    """Every sampled client is slow with probability `rate`: it makes only a share of its local steps.

    Methods that send one gradient or Hessian of the whole local set (PSGD, FedNL, FedNS, FedNew) have no local steps
    to leave out.

    Args:
        rate: Probability in [0, 1], drawn for each client in each round.
        fraction_of_work: Share of a slow client's steps, in [0, 1], rounded to the nearest step, at least one.

    Raises:
        ValueError: If a value is outside its range.
    """

    records = ()

    def __init__(self, rate: float, fraction_of_work: float = 0.5) -> None:
        self.rate = share("rate", rate)
        self.fraction_of_work = share("fraction_of_work", fraction_of_work)

    def on_round_start(self, round: Round) -> None:
        """Give the slow clients less to do."""
        cohort, seed = round.cohort, round.federation.seed
        cohort.clients = [
            SlowData(c, self.fraction_of_work) if hit(self.rate, seed, "straggler", cohort.round, c.client) else c
            for c in cohort.clients
        ]


class SlowData(ChangedData):
    """The first steps of the client's round.

    Args:
        data: The client's data.
        fraction: Share of the steps.
    """

    def __init__(self, data: ClientData, fraction: float) -> None:
        super().__init__(data)
        self.fraction = fraction

    def steps(self, work: LocalWork) -> int:
        """Return the steps that are left: at least one, where there is one."""
        steps = self.data.steps(work)
        return min(steps, max(1, round(self.fraction * steps)))


def hit(rate: float, seed: int, purpose: str, round: int, client: int) -> bool:
    """Draw whether a client is hit in a round: f(seed, purpose, round, client), whatever the method and the order."""
    return bool(numpy_generator(seed, purpose, round, client).random() < rate)
