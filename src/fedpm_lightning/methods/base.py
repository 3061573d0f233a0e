"""The interface of a federated method: four functions, on one screen.

A method says WHAT is computed; the frame around it samples cohorts, runs clients, streams sums, counts bytes, logs and
checkpoints. A method never sees the trainer and never writes a training loop: it gives `client.train` an optimizer
and, where the paper has one, a gradient transform.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

from torch import Tensor, nn

from fedpm_lightning.client.client import Client
from fedpm_lightning.client.executor import Stackable
from fedpm_lightning.server.aggregator import Aggregator, MeanAggregator
from fedpm_lightning.types import Broadcast, ClientState, ClientUpdate, Params, ServerState


class Method(ABC):
    """Base class of every method; the name that YAML uses is the name of the subclass."""

    taxonomy: ClassVar[tuple[str, str] | None] = None
    """Its place in the paper's taxonomy, as tables list it: "first order" or "second order" local steps, and what the
    server mixes, "gradients", "parameters" or "preconditioned parameters". A method based on another one inherits it;
    None: last in the tables."""

    look: ClassVar[tuple[str, str] | None] = None
    """Its colour `#rrggbb` and its marker of matplotlib in every figure; None: its name chooses among the free ones."""

    stateful: ClassVar[bool] = False
    """Whether clients keep a state, so that they stay on one rank: derived, true where `init_client` is defined."""

    mixes: Literal["mean", "sums"] = "mean"
    """What `aggregator` needs of `ClientUpdate.params`: nothing but their mean, in whose place a robust rule
    can stand (mean), or sums of its own (sums). A class that overrides `aggregator` declares it again."""

    assigns_target: ClassVar[bool] = False
    """Whether theta must become exactly what `aggregator` returns: other server optimizers are refused then."""

    weightings: ClassVar[tuple[str, ...]] = ("size", "uniform")
    """The mixing weights under which the method is defined."""

    uploads: ClassVar[Literal["parameters", "direction"]] = "parameters"
    """What `ClientUpdate.params` holds: trained parameters theta_i, or a gradient or step."""

    exact_upload: ClassVar[str] = ""
    """Why the upload must arrive as it is, so that `model.message` is refused; empty where it may be rounded."""

    stackable: Stackable = "no"
    """Which clients `client_update` can train at once, with tensors [C, ...] in place of one client's (see
    client/stacked_client.py). A class that overrides `client_update` must declare it again."""

    needs_preparation: bool = False
    """Whether every client of the cohort runs `prepare` before any of them trains (one more pass, bytes counted)."""

    num_clients: int = 0
    """N, all clients of the experiment and not the cohort; the frame sets it before `setup`."""

    l2: float = 0.0
    """lambda of the local objectives (model.l2); the frame sets it before `setup`."""

    sample: Tensor | None = None
    """Inputs of two samples; the frame sets it before `setup`, where it has data."""

    def __init_subclass__(cls) -> None:
        # Inherited, they would be promises about code that did not exist yet.
        if "client_update" in vars(cls) and "stackable" not in vars(cls):
            cls.stackable = "no"
        if "look" not in vars(cls):
            cls.look = None
        if "aggregator" in vars(cls) and "mixes" not in vars(cls):
            cls.mixes = "sums"
        cls.stateful = cls.init_client is not Method.init_client

    def setup(self, net: nn.Module) -> list[str]:
        """Look at the network once, before round 0; return what was decided (which rule each parameter gets).

        The first line sums it up: where there are many, it alone is printed and all stand in the run's rules.txt.
        """
        return []

    def extra_numel(self) -> int:
        """Return how many numbers one of several stacked clients holds beside leaves, gradients and the upload of them.

        Chunks of clients are cut by it, after `setup`: a method with a matrix over all leaves says its size.
        """
        return 0

    def init_server(self, params: Params) -> ServerState:
        """Return the server's state before round 0; `params` is theta_0."""
        return {}

    def init_client(self, client: Client) -> ClientState:
        """Return a client's state before its first round."""
        return {}

    def broadcast_extra(self, server: ServerState) -> ServerState:
        """Return what the server sends beside theta (a control variate, ...)."""
        return {}

    def prepare(self, client: Client) -> Params:
        """Return the first pass's message; the weighted mean reaches clients as `broadcast.extra["prepared"]`."""
        raise RuntimeError(f"{type(self).__name__} declares needs_preparation without a prepare()")

    def evaluation_params(self, theta: Params, server: ServerState) -> Params:
        """Return the parameters at which the global model is evaluated where that is not theta (a mean of iterates)."""
        return {}

    @abstractmethod
    def client_update(self, client: Client) -> ClientUpdate:
        """Train (or differentiate) on one client, whose scratch network already holds theta; return the upload."""

    def aggregator(self, broadcast: Broadcast, server: ServerState) -> Aggregator:
        """Return the streaming aggregator of one round; its `finish()` gives the server's target for theta.

        The plain weighted mean of `update.params` is the default. `server` may be changed in `finish()`.
        """
        return MeanAggregator(broadcast.params)
