"""The weighted mean of the parameters, beside what aligned clients start from in the next round.

FedPAC (arXiv:2602.19271), FedMuon (arXiv:2510.27403): the mean of the clients' optimizer states, and the direction
g_G = sum w_i (theta - theta_i)/(K_i eta) that they moved along together.
"""

from __future__ import annotations

from torch import Tensor

from fedpm_lightning.server.aggregator import MeanAggregator
from fedpm_lightning.server.mixing import RunningMean
from fedpm_lightning.types import ClientUpdate, Params, ServerState

STATES = "states"
"""Key of the optimizer states in the server's state, the broadcast and the upload."""

DIRECTION = "g_G"
"""Key of the cohort's direction in the server's state and in the broadcast."""


class AlignedMean(MeanAggregator):
    """sum w_i theta_i, with the means of states and directions.

    Args:
        theta: The round's starting parameters.
        server: The server's state; `finish` replaces the entries that it has.
        lr: eta, the schedule's factor included.
    """

    def __init__(self, theta: Params, server: ServerState, lr: float) -> None:
        super().__init__(theta)
        self._theta, self._server, self._lr = theta, server, lr
        device = next(iter(theta.values())).device
        self._kept = {key: RunningMean({n: t.to(device) for n, t in part.items()}) for key, part in server.items()}

    def add(self, update: ClientUpdate, weight: float) -> None:
        """Add theta_i, the client's states, and the direction that it moved along."""
        super().add(update, weight)
        if STATES in self._kept:
            self._kept[STATES].add(update.message[STATES], weight)
        if DIRECTION in self._kept:
            rate = update.num_steps * self._lr
            moved = {name: (p.double() - update.params[name]) / rate for name, p in self._theta.items()}
            self._kept[DIRECTION].add(moved, weight)

    def tensors(self) -> list[Tensor]:
        """Return all running sums."""
        return super().tensors() + [t for mean in self._kept.values() for t in mean.tensors()]

    def finish(self) -> Params:
        """Keep the means; return sum w_i theta_i / sum w_i."""
        self._server.update({key: mean.finish() for key, mean in self._kept.items()})
        return super().finish()
