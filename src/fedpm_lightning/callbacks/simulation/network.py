"""A simulated network: how long rounds would last over clients' own connections and processors."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from fedpm_lightning.callbacks.base import FederatedCallback
from fedpm_lightning.checks import at_least, positive
from fedpm_lightning.nested import wire_bytes
from fedpm_lightning.ranks import all_max
from fedpm_lightning.rng import numpy_generator
from fedpm_lightning.round import Round
from fedpm_lightning.types import ClientData, ClientUpdate, LocalWork


@dataclass
class Exchange:
    """What one client of a round sends and does.

    Attributes:
        down: Bytes to it.
        up: Bytes from it.
        steps: Optimizer steps.
        trips: Messages there and back.
        returned: Whether its update arrived.
    """

    down: int = 0
    up: int = 0
    steps: float = 0.0
    trips: int = 1
    returned: bool = False


class SimulatedNetwork(FederatedCallback):
    """Records time/simulated_s: the sum over rounds of the slowest client's download + compute + upload, in seconds.

    Each client keeps one connection and one processor for the whole experiment, drawn by the experiment's seed:
    median times exp(spread N(0, 1)), the same factor for both directions. Clients whose update never arrives are not
    waited for; a first pass adds its bytes and one more trip; candidates of power-of-choice come before, all of them,
    a forward pass counting as a third of the steps of an epoch. Evaluation and the server take no time.

    Args:
        down_mbps: Median download, in 10^6 bits a second.
        up_mbps: Median upload.
        latency_s: Median time of a message one way.
        spread: Standard deviation of the logarithm of bandwidths and latencies, at least 0.
        step_s: Seconds of one optimizer step at the median client; null: as measured here, the time of a round's
            clients over their steps.
        compute_spread: Standard deviation of the logarithm of the clients' step times, at least 0.

    Raises:
        ValueError: If a value is outside its range.
    """

    records = ("time/simulated_s",)

    def __init__(
        self,
        down_mbps: float = 20.0,
        up_mbps: float = 5.0,
        latency_s: float = 0.05,
        spread: float = 0.5,
        step_s: float | None = None,
        compute_spread: float = 0.5,
    ) -> None:
        self.down_mbps, self.up_mbps = positive("down_mbps", down_mbps), positive("up_mbps", up_mbps)
        self.latency_s, self.spread = at_least("latency_s", latency_s, 0.0), at_least("spread", spread, 0.0)
        self.step_s = None if step_s is None else at_least("step_s", step_s, 0.0)
        self.compute_spread = at_least("compute_spread", compute_spread, 0.0)
        self.total_s = 0.0
        self._start, self._measured = 0.0, 0.0
        self._exchanges: dict[int, Exchange] = {}

    def on_round_start(self, round: Round) -> None:
        """Start the round."""
        self._exchanges, self._start = {}, time.perf_counter()

    def on_client_start(self, round: Round, data: ClientData) -> None:
        """Count the broadcast; what a candidate has, it does not get again."""
        held = theta_bytes(round) if round.candidates else 0
        self._of(data.client).down += round.broadcast.wire_bytes - held

    def on_update_received(self, round: Round, update: ClientUpdate) -> None:
        """Count an upload, or a first pass's message."""
        exchange = self._of(update.client)
        exchange.up += update.wire_bytes
        if round.preparing:
            exchange.trips += 1
        else:
            exchange.steps, exchange.returned = float(update.num_steps), True

    def on_before_aggregate(self, round: Round) -> None:
        """Take the time of this process's clients."""
        self._measured = time.perf_counter() - self._start

    def on_round_end(self, round: Round) -> None:
        """Add the slowest client of all ranks, after the slowest candidate."""
        exchanges = {client: one for client, one in self._exchanges.items() if one.returned}
        steps = sum(exchange.steps for exchange in exchanges.values())
        step_s = self._measured / max(steps, 1.0) if self.step_s is None else self.step_s
        asked = {data.client: asking(round, data) for data in round.candidates}
        seed = round.federation.seed
        slowest = [
            max((self.seconds(seed, client, one, step_s) for client, one in of.items()), default=0.0)
            for of in (asked, exchanges)
        ]
        self.total_s += sum(all_max(slowest, round.device))
        round.record("time/simulated_s", self.total_s)

    def seconds(self, seed: int, client: int, exchange: Exchange, step_s: float) -> float:
        """Return how long a client takes for an exchange."""
        bandwidth, delay, slowness = factors(seed, client)
        rate = 1e6 / 8 * math.exp(self.spread * bandwidth)
        moved = exchange.down / (self.down_mbps * rate) + exchange.up / (self.up_mbps * rate)
        latency = 2 * exchange.trips * self.latency_s * math.exp(self.spread * delay)
        return latency + moved + exchange.steps * step_s * math.exp(self.compute_spread * slowness)

    def _of(self, client: int) -> Exchange:
        return self._exchanges.setdefault(client, Exchange())

    def state_dict(self) -> dict[str, Any]:
        """Return the total, so that it survives a resume."""
        return {"total_s": self.total_s}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the total."""
        self.total_s = float(state_dict["total_s"])


def theta_bytes(round: Round) -> int:
    """Return what a candidate of power-of-choice gets: the broadcast without the method's own part."""
    return replace(round.broadcast, extra={}).wire_bytes


def asking(round: Round, data: ClientData) -> Exchange:
    """Return what a candidate exchanges: theta for its loss, over a forward pass."""
    return Exchange(theta_bytes(round), wire_bytes(0.0), data.steps(LocalWork(epochs=1)) / 3)


@cache
def factors(seed: int, client: int) -> Sequence[float]:
    """Draw a client's three standard normals: of its bandwidth, its latency, and the time of its steps."""
    return tuple(numpy_generator(seed, "network", 0, client).standard_normal(3).tolist())
