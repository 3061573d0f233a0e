"""What the tests of the diagnostics plug into a run by class path, above all a witness of everything uploaded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from fedpm_lightning.callbacks.base import FederatedCallback
from fedpm_lightning.types import Params, clone_params


@dataclass
class Seen:
    """One round: theta, and of every client that returned its upload, its P_i and its weight."""

    theta: Params
    params: list[Params] = field(default_factory=list)
    P: list[dict[str, Any]] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)

    def moves(self, directions: bool = False) -> torch.Tensor:
        """u_i as rows, float64."""
        flat = [torch.cat([p[name].double().flatten() for name in self.theta]) for p in self.params]
        theta = torch.cat([t.double().flatten() for t in self.theta.values()])
        return torch.stack([p if directions else p - theta for p in flat])


class Recorder(FederatedCallback):
    """Keeps every round of the process; stands after the callbacks that change updates."""

    seen: ClassVar[list[Seen]] = []

    def on_train_start(self, trainer, pl_module) -> None:
        Recorder.seen.clear()

    def on_round_start(self, round) -> None:
        Recorder.seen.append(Seen(clone_params(round.broadcast.params)))

    def on_client_end(self, round, update) -> None:
        if not update.dropped:
            seen = Recorder.seen[-1]
            seen.params.append(clone_params(update.params))
            seen.P.append({name: P.to("cpu") for name, P in update.message.get("P", {}).items()})
            seen.weights.append(round.weight(update))


class Lossy(FederatedCallback):
    """A lossy channel: rounds what is sent, loses client 3's update, and sends client 4's theta back to the server."""

    def on_client_end(self, round, update) -> None:
        for name, value in update.params.items():
            update.params[name] = value.half().to(value.dtype)
        if update.client == 4:
            update.params = clone_params(round.broadcast.params)
        update.dropped = update.client == 3
