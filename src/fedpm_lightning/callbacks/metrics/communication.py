"""Counts what crosses the network, in the form that is really sent."""

from __future__ import annotations

from typing import Any

from fedpm_lightning.callbacks.base import FederatedCallback
from fedpm_lightning.ranks import all_total
from fedpm_lightning.round import Round
from fedpm_lightning.types import ClientData, ClientUpdate


class Communication(FederatedCallback):
    """Records comm/up_bytes and comm/down_bytes, both cumulative over the experiment and over clients."""

    records = ("comm/up_bytes", "comm/down_bytes")

    def __init__(self) -> None:
        self.up_bytes = 0
        self.down_bytes = 0
        self._round = [0, 0]  # bytes up and down

    def on_client_start(self, round: Round, data: ClientData) -> None:
        """Count one broadcast."""
        self._round[1] += round.broadcast.wire_bytes

    def on_update_received(self, round: Round, update: ClientUpdate) -> None:
        """Count one upload."""
        self._round[0] += update.wire_bytes

    def on_round_start(self, round: Round) -> None:
        """Start this round's counts."""
        self._round = [0, 0]  # bytes up and down

    def on_round_end(self, round: Round) -> None:
        """Add this round's counts over all ranks and record the running totals."""
        counted = zip(self._round, round.extra_bytes, strict=True)
        up, down = all_total([float(own + further) for own, further in counted], round.device)
        self.up_bytes += int(up)
        self.down_bytes += int(down)
        round.record("comm/up_bytes", float(self.up_bytes))
        round.record("comm/down_bytes", float(self.down_bytes))

    def state_dict(self) -> dict[str, Any]:
        """Return the totals, so that they survive a resume."""
        return {"up_bytes": self.up_bytes, "down_bytes": self.down_bytes}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the totals."""
        self.up_bytes = int(state_dict["up_bytes"])
        self.down_bytes = int(state_dict["down_bytes"])
