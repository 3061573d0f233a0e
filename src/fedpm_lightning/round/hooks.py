"""Hooks of a round: called in this order, they may observe or change it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fedpm_lightning.types import ClientData, ClientUpdate, Params

if TYPE_CHECKING:
    from fedpm_lightning.round.communication_round import Round


class Hooks:
    """Base class of hooks: compression, clipping, noise, dropouts, counting, diagnostics.

    Within a round the hooks fire in the order in which they stand here. Clients that train at once all start before
    the first of them ends.
    """

    def on_round_start(self, round: Round) -> None:
        """Before anything is sent. Removing clients from `round.cohort.clients` keeps them out of the round."""

    def on_client_start(self, round: Round, data: ClientData) -> None:
        """Before one client trains."""

    def on_client_end(self, round: Round, update: ClientUpdate) -> None:
        """On the client, before it sends: change the update in place, or set `update.dropped`."""

    def on_update_received(self, round: Round, update: ClientUpdate) -> None:
        """At the server: the update as it arrived (also a preparation message). Read only."""

    def on_before_aggregate(self, round: Round) -> None:
        """All updates are in."""

    def on_after_aggregate(self, round: Round, target: Params) -> None:
        """The target is known, theta has not moved yet."""

    def on_round_end(self, round: Round) -> None:
        """Theta has moved; evaluation follows."""


def implemented_hooks(hooks: Sequence[Hooks]) -> dict[str, list[Callable[..., None]]]:
    """Return, for every hook, the implementations in the order of `hooks`."""
    names = [name for name in vars(Hooks) if name.startswith("on_")]
    return {
        name: [getattr(hook, name) for hook in hooks if getattr(type(hook), name) is not getattr(Hooks, name)]
        for name in names
    }
