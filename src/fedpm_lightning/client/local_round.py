"""One round at the clients' side: what they all share, a client's turn, and what becomes of one that fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, TypeAlias, cast

from fedpm_lightning.client.client import LOCAL_BUFFERS, BufferPolicy, Client
from fedpm_lightning.client.faults import NUMERICAL, check_finite, client_error
from fedpm_lightning.client.local_model import LocalModel
from fedpm_lightning.client.store import ClientStore
from fedpm_lightning.rng import seeded
from fedpm_lightning.types import Broadcast, ClientData, ClientState, ClientUpdate, LocalWork, Params

MESSAGE = "message"
"""Key of what is kept for a client's messages, beside the method's own state, which never sees it."""

UpdateAndState: TypeAlias = tuple[ClientUpdate, ClientState]
"""What a client sends, and the state that it keeps if that arrives."""

OnBadClient: TypeAlias = Literal["error", "drop"]


class ClientSide(Protocol):
    """What the clients' side needs of a method."""

    stateful: ClassVar[bool]

    def extra_numel(self) -> int:
        """Return the numbers that a stacked client holds beside its leaves."""
        ...

    def init_client(self, client: Client) -> ClientState:
        """Return a client's state before its first round."""
        ...

    def prepare(self, client: Client) -> Params:
        """Return the first pass's message."""
        ...

    def client_update(self, client: Client) -> ClientUpdate:
        """Train on one client."""
        ...


@dataclass(frozen=True)
class LocalRound:
    """What the clients of a round share.

    Attributes:
        broadcast: What the server sent.
        method: The method.
        model: The scratch network in which clients train one after another.
        work: How much each trains.
        store: The clients' states.
        buffer_policy: What happens to batch-norm statistics.
        on_bad_client: What a client with NaN, Inf or a failed factorisation does: stop the run, or drop out.
        seed: The experiment's seed.
        on_start: Called before a client trains.
        on_end: Called with what a client is about to send, which it may change; None where nobody looks at it.
        print: Prints a line.
        pack: Puts an update into the form in which it is sent, given what it returned for the client's last one; None
            where updates are sent as they are.
    """

    broadcast: Broadcast
    method: ClientSide
    model: LocalModel
    work: LocalWork
    store: ClientStore
    buffer_policy: BufferPolicy
    on_bad_client: OnBadClient
    seed: int
    on_start: Callable[[ClientData], None]
    on_end: Callable[[ClientUpdate], None] | None
    print: Callable[[str], None]
    pack: Callable[[ClientUpdate, ClientState], ClientState] | None = None

    def client(self, data: ClientData) -> Client:
        """Return a client with its state, the scratch network at theta."""
        client = self.unloaded_client(data)
        client.start()
        return client

    def unloaded_client(self, data: ClientData) -> Client:
        """Return a client with its state, the scratch network as it is."""
        client = Client(data, self.broadcast, self.model, self.work, {}, self.buffer_policy)
        client.state = self.store.get(data.client, lambda: self._first_state(client))
        client.state.pop(MESSAGE, None)
        return client

    def _first_state(self, client: Client) -> ClientState:
        """Return a client's state before its first round; the method may inspect the network at theta."""
        if not self.method.stateful:
            return {}
        client.start()
        return self.method.init_client(client)

    def final_state(self, client: Client) -> ClientState:
        """Return the state that a client ends with.

        Raises:
            TypeError: If the method keeps something without an `init_client`: it would wander between ranks.
        """
        own = [key for key in client.state if key != LOCAL_BUFFERS]
        if own and not self.method.stateful:
            name = type(self.method).__name__
            raise TypeError(
                f"{name} keeps {own[0]!r} in a client's state: give it an init_client that returns the first"
            )
        return client.state

    def train(self, data: ClientData) -> UpdateAndState | None:
        """Train one client; return None if it was dropped as bad."""

        def trained() -> UpdateAndState:
            client = self.client(data)
            update = cast(object, self.method.client_update(client))
            if not isinstance(update, ClientUpdate):
                name = type(self.method).__name__
                raise TypeError(f"{name}.client_update returned {type(update).__name__}: return client.upload(...)")
            return self.prepare_upload(update, self.final_state(client))

        return self.guarded(data, trained)

    def prepare(self, data: ClientData) -> UpdateAndState | None:
        """Run one client's first pass; return None if it was dropped as bad."""

        def prepared() -> UpdateAndState:
            client = self.client(data)
            state = self.final_state(client)
            if self.pack is not None:
                state = with_message_state(state, self._message_state(data.client))
            return ClientUpdate(data.client, data.num_samples, 0, self.method.prepare(client)), state

        return self.guarded(data, prepared)

    def prepare_upload(self, update: ClientUpdate, state: ClientState) -> UpdateAndState:
        """Call the hooks on what a client is about to send, and compress it."""
        if self.on_end is not None:
            self.on_end(update)
        if self.pack is None or update.dropped:
            return update, state
        return update, with_message_state(state, self.pack(update, self._message_state(update.client)))

    @property
    def sends_unchanged(self) -> bool:
        """Whether no hook and no compression touches an update before it is sent."""
        return self.on_end is None and self.pack is None

    def _message_state(self, client: int) -> ClientState:
        """Return what is kept for a client's messages."""
        return self.store.get(client, dict).get(MESSAGE, {})

    def guarded(self, data: ClientData, result: Callable[[], UpdateAndState]) -> UpdateAndState | None:
        """Return a client's result, computed with its own random numbers; None if it was dropped as bad.

        Raises:
            BadClientError: Naming round, client and cause.
        """
        round, sent = self.broadcast.round, self.broadcast.versions()
        try:
            with seeded(self.seed, "client", round, data.client, [self.model.device]):
                update, state = result()
            check_unchanged(sent, self.broadcast)
            check_finite(update)
        except Exception as cause:
            if self.on_bad_client == "error" or not isinstance(cause, NUMERICAL):
                raise client_error(round, data.client, cause) from cause
            self.print(f"dropped: round {round + 1}, client {data.client}: {cause}")
            return None
        return update, state


def with_message_state(state: ClientState, kept: ClientState) -> ClientState:
    """Return a method's state beside what is kept for messages."""
    return {**state, MESSAGE: kept} if kept else state


def check_unchanged(before: Mapping[str, tuple[int, int]], broadcast: Broadcast) -> None:
    """Check that nobody has changed what all clients of the round share.

    Raises:
        TypeError: Naming the part that `before`, its `versions()` then, knows otherwise.
    """
    now = broadcast.versions()
    wrong = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    if wrong:
        raise TypeError(f"broadcast.{wrong[0]} was changed on the client, and all clients share it: change a clone")
