"""The interface of a preconditioner: local steps, upload, mixing.

    step     `optimizer`: a client's optimizer of one round, whose steps use P_i
    send     the optimizer's `preconditioners()`: the P_i of each block, with their own size on the network
    mix      `mixing`: the server's running sums of one block, which end in its new weights

A block is a set of parameters that share one P: a layer, or all parameters as one vector (`FlatLayer`). P is a
`curvature.matrices.preconditioner.Preconditioner`: it solves, adds itself to sums, and knows its bytes.

An object holds settings alone: one serves all clients and rounds. docs/preconditioners.md writes one out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedpm_lightning.client.client import Client
from fedpm_lightning.client.executor import Stackable
from fedpm_lightning.curvature.matrices.preconditioner import Preconditioner
from fedpm_lightning.server.mixing import RunningPreconditionedMix
from fedpm_lightning.server.preconditioned import Block, BlockMix


class PreconditionedOptimizer(torch.optim.Optimizer, ABC):
    """One client's optimizer of one round; local_loop.py names what it may have beside `step`."""

    @abstractmethod
    def preconditioners(self, mix_damping: float | None = None, factor: str = "last") -> dict[str, Preconditioner]:
        """Return the P_i to upload, by block name.

        Args:
            mix_damping: Another delta over the same curvature; None: the one that the steps used.
            factor: One of the preconditioner's `mix_factors`, `full_pass` apart.
        """


class LocalPreconditioner(ABC):
    """Base class of the preconditioners of LocalNewton and FedPM."""

    mix_factors: ClassVar[tuple[str, ...]] = ("last",)
    """The values of FedPM's `mix_factor` that it can serve: `last` is the P of the last step."""

    align: float = 0.0
    """Batches that the cohort's mean curvature of the round before counts as; 0: clients start afresh."""

    preconditions_steps: bool = True
    """Whether local steps use P; False: it is gathered for the mixing alone."""

    def inspect_network(self, net: nn.Module, inputs: Tensor) -> None:  # noqa: B027 - most have nothing to look at
        """Inspect how `net` processes a batch of inputs; called before `blocks` if samples are at hand."""

    def aligned(self, batches: float) -> LocalPreconditioner:
        """Return it with `align = batches`, if it has no `align` of its own and supports one."""
        return self

    @abstractmethod
    def blocks(self, net: nn.Module) -> Sequence[Block]:
        """Return the parameters that share a P each; all others take a plain step and a plain mean.

        Raises:
            ValueError: If the network is too large for it.
        """

    @abstractmethod
    def explain(self, net: nn.Module) -> list[str]:
        """Return what to print at the start: which rule each parameter gets."""

    @abstractmethod
    def optimizer(
        self, client: Client, blocks: Sequence[Block], lr: float, momentum: float, weight_decay: float
    ) -> PreconditionedOptimizer:
        """Return a client's optimizer of this round; `lr` already has the schedule's factor."""

    def mixing(self, block: Block, W: Tensor, off_diagonal: float = 1.0) -> BlockMix:
        """Return the server's running sums of one block around its starting weights W [*, out, d]."""
        return RunningPreconditionedMix(block.name, W, off_diagonal)

    def most_rows(self, block: Block) -> int | None:
        """Return how many rows a wide block's mean A is sent as, where its clients send rows; None: all of A."""
        return None

    def full_pass(self, client: Client, blocks: Sequence[Block], delta: float | None) -> dict[str, Preconditioner]:
        """Return the P_i over the whole local data at theta_i, where `mix_factors` has `full_pass`."""
        raise NotImplementedError(f"{type(self).__name__} names full_pass among its mix_factors without having it")

    def stackable(self, net: nn.Module | None = None) -> Stackable:
        """Return which clients can train at once, with tensors [C, ...]; None: as far as the settings tell."""
        return "no"

    def extra_numel(self, blocks: Sequence[Block]) -> int:
        """Return how many numbers a stacked client holds beside leaves, gradients and the upload of them."""
        return 0
