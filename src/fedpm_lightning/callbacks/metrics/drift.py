"""How far the clients of a round move apart."""

from __future__ import annotations

import torch

from fedpm_lightning.callbacks.base import Diagnostic
from fedpm_lightning.ranks import all_max, all_sum
from fedpm_lightning.round import Round
from fedpm_lightning.types import ClientUpdate, Params


class ClientDrift(Diagnostic):
    """Records the lengths of the clients' moves u_i = theta_i - theta and how alike they point.

    drift/norm_mean and drift/norm_max, of ||u_i|| over all parameters; drift/cosine, the mean of cos(u_i, u_j) over
    all pairs. Every client that returned counts the same, whatever its weight. A method that uploads a direction
    (PSGD, FedNL, FedNS, FedNew) has no theta_i: u_i is then what it uploads, a gradient or a step, and its lengths are
    recorded as drift/direction_mean and drift/direction_max, because they are no distances.

    Streams: sum of u_i / ||u_i|| is all that is kept, since its squared norm is n plus twice the sum of all cosines.

    Args:
        every: Look in each round whose number (from 1) is a multiple of it.

    Raises:
        ValueError: If `every` is below 1.
    """

    records = ("drift/",)

    def __init__(self, every: int = 1) -> None:
        super().__init__(every)
        self._units: Params = {}
        # Clients, clients that moved at all, and the sum of the norms.
        self._sums = torch.zeros(3, dtype=torch.float64)
        self._greatest = torch.zeros((), dtype=torch.float64)

    def begin(self, round: Round) -> None:
        """Start empty sums."""
        theta = round.broadcast.params
        self._units = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in theta.items()}
        self._sums = torch.zeros(3, dtype=torch.float64, device=round.device)
        self._greatest = torch.zeros((), dtype=torch.float64, device=round.device)

    def add(self, round: Round, update: ClientUpdate) -> None:
        """Add one client's norm and unit vector; nothing waits for the device."""
        if not self._units.keys() <= update.params.keys():
            self.print_once(
                round, f"{type(round.method).__name__} uploads no parameters in the clear; drift/* is empty"
            )
            return
        u = self.moves(round, update)
        norm = torch.stack([torch.linalg.vector_norm(part) for part in u.values()]).norm()
        moved = norm > 0
        scale = torch.where(moved, 1 / norm, torch.zeros_like(norm))
        for name, total in self._units.items():
            total.add_(u[name] * scale)
        self._sums += torch.stack([torch.ones_like(norm), moved.double(), norm])
        self._greatest = torch.maximum(self._greatest, norm)

    def moves(self, round: Round, update: ClientUpdate) -> Params:
        """Return u_i, float64."""
        theta = round.broadcast.params
        if round.method.uploads == "direction":
            return {name: update.params[name].to(total) for name, total in self._units.items()}
        return {name: update.params[name].to(total) - theta[name].double() for name, total in self._units.items()}

    def on_before_aggregate(self, round: Round) -> None:
        """Record the round; a round that ends as diverged keeps its figures too."""
        if self.due:
            self.finish(round)
        self._units = {}

    def finish(self, round: Round) -> None:
        """Sum over the ranks and record."""
        all_sum([self._sums, *self._units.values()], round.device)
        clients, moved, total = self._sums.tolist()
        (greatest,) = all_max([float(self._greatest)], round.device)
        if clients == 0:
            return
        length = "direction" if round.method.uploads == "direction" else "norm"
        round.record(f"drift/{length}_mean", total / clients)
        round.record(f"drift/{length}_max", greatest)
        if moved >= 2:
            squared = float(torch.stack([part.square().sum() for part in self._units.values()]).sum())
            round.record("drift/cosine", (squared - moved) / (moved * (moved - 1)))
