"""Where clients' states live between rounds: on the CPU, keyed by client, made at a client's first round."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from fedpm_lightning.types import ClientState


class ClientStore:
    """A lazy dictionary of client states; only clients that ever took part occupy memory.

    Attributes:
        changed: Client -> the 0-based round that last changed its state.
    """

    def __init__(self) -> None:
        self.changed: dict[int, int] = {}
        self._states: dict[int, ClientState] = {}
        self._pending: dict[int, ClientState] = {}

    def get(self, client: int, init: Callable[[], ClientState]) -> ClientState:
        """Return the client's state in a dictionary of its own; `init()` makes the first one. Replace, never mutate.

        It is a copy, so that a client whose round fails leaves its stored state as it was: `put` takes it.
        """
        stored = self._pending.get(client, self._states.get(client))
        return dict(stored) if stored is not None else init()

    def put(self, client: int, state: ClientState) -> None:
        """Take a client's new state; it counts from the end of the round. Tensors go to the CPU."""
        if state:
            self._pending[client] = {key: to_cpu(value) for key, value in state.items()}

    def commit(self, round: int) -> None:
        """End a round: until then a checkpoint (SLURM may ask for one at any moment) holds the states before it."""
        self._states.update(self._pending)
        self.changed.update(dict.fromkeys(self._pending, round))
        self._pending.clear()

    def discard(self) -> None:
        """Forget the states of a round that did not end."""
        self._pending.clear()

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._states))

    def state_dict(self) -> dict[int, ClientState]:
        """Return all states, client -> state: plain dictionaries of tensors and numbers."""
        return {client: self._states[client] for client in self}

    def load_state_dict(self, states: dict[int, ClientState], changed: dict[int, int] | None = None) -> None:
        """Replace all states; without `changed` they count as those of round 0."""
        self._states, self._pending = dict(states), {}
        self.changed = dict(changed) if changed is not None else dict.fromkeys(states, 0)


def to_cpu(value: Any) -> Any:
    """Return `value` with every tensor in it detached and on the CPU."""
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if isinstance(value, dict):
        return {key: to_cpu(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [to_cpu(part) for part in value]
    return value
