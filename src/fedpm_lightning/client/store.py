"""Client states between rounds: on the CPU, keyed by client, created in a client's first round.

Above a bound they live on the disk: the states that were changed longest ago go first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from fedpm_lightning.client.state_files import MIB, StateFiles, give_back_memory, size_of
from fedpm_lightning.errors import RoundError
from fedpm_lightning.nested import copy_nested, named_leaves
from fedpm_lightning.types import ClientState

CPU = torch.device("cpu")


class ClientStore:
    """A lazy dictionary of client states; only clients that ever took part occupy memory.

    Args:
        memory_mib: Most MiB of states in memory between rounds; None: no bound.

    Attributes:
        changed: Client -> the 0-based round that last changed its state.
        in_memory: Bytes of the states in memory; counted only where there is a bound.

    Raises:
        ValueError: If the bound is negative.
    """

    def __init__(self, memory_mib: float | None = None) -> None:
        if memory_mib is not None and not memory_mib >= 0:
            raise ValueError(f"model.client_memory_mib must be 0 or more, or null for no bound, got {memory_mib}")
        self.changed: dict[int, int] = {}
        self._bound = None if memory_mib is None else memory_mib * MIB
        self._files = StateFiles()
        self._sizes: dict[int, int] = {}  # of the states in memory, in the order of their last change
        self.in_memory = 0
        self._states: dict[int, ClientState] = {}
        self._pending: dict[int, ClientState] = {}

    def use_folder(self, folder: Path, rank: int) -> None:
        """Let states above the bound live in `folder`, which other ranks may use as well."""
        if self._bound is not None:
            self._files = StateFiles(folder, rank)

    def release(self) -> None:
        """Remove the files of states on the disk; the states themselves stay readable."""
        self._files.close()

    def get(self, client: int, init: Callable[[], ClientState]) -> ClientState:
        """Return a copy of the client's state; `init()` makes the first one (the rule: `types.ClientState`)."""
        stored = self._pending.get(client, self._states.get(client))
        return copy_nested(stored) if stored is not None else init()

    def put(self, client: int, state: ClientState) -> None:
        """Store a copy of a client's new state; `commit` makes it current.

        Raises:
            RoundError: If something in it could not be read back from a checkpoint.
        """
        if state:
            check_plain(state, f"the state of client {client}")
            self._pending[client] = copy_nested(state, CPU)

    def commit(self, round: int) -> None:
        """End a round: until then a checkpoint (SLURM may ask for one at any moment) holds the states before it."""
        self.changed.update(dict.fromkeys(self._pending, round))
        spilled = [self._store_state(client, state) for client, state in self._pending.items()]
        self._pending.clear()
        if any(spilled):
            give_back_memory()

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
        """Replace all states by copies; without `changed` they count as those of round 0."""
        self._states, self._sizes, self._pending, self.in_memory = {}, {}, {}, 0
        self._files.close()
        self.changed = dict(changed) if changed is not None else dict.fromkeys(states, 0)
        for client in sorted(states, key=lambda client: (self.changed.get(client, 0), client)):
            self._store_state(client, copy_nested(states[client], CPU))

    def _store_state(self, client: int, state: ClientState) -> bool:
        """Store a state; move the oldest ones to disk while those in memory exceed the bound."""
        self._states[client] = state
        if self._bound is None:
            return False
        self._files.drop(client)
        size = size_of(state)
        self.in_memory += size - self._sizes.pop(client, 0)
        self._sizes[client] = size
        spills = self.in_memory > self._bound
        while self.in_memory > self._bound:
            oldest = next(iter(self._sizes))
            self._states[oldest] = self._files.write(oldest, self._states[oldest])
            self.in_memory -= self._sizes.pop(oldest)
        return spills


def check_plain(state: ClientState, what: str) -> None:
    """Check that a state holds only what a checkpoint can restore.

    Raises:
        RoundError: Naming the first entry of another kind.
    """
    for name, part in named_leaves(state):
        if not isinstance(part, Tensor | bool | int | float | str | None):
            raise RoundError(
                f"{what} holds a {type(part).__name__} ({name}), which no checkpoint gives back: keep tensors, numbers "
                "and strings, in dictionaries and lists"
            )
