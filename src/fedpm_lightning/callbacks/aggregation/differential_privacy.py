"""Client-level differential privacy, chosen in YAML instead of the plain aggregation: docs/privacy.md.

fedpm fit ... --config configs/privacy.yaml
"""

from __future__ import annotations

import math

import torch
from lightning.pytorch import LightningModule, Trainer

from fedpm_lightning.callbacks.base import Aggregation, check_buffers, federation_of
from fedpm_lightning.callbacks.trainer_access import data_of
from fedpm_lightning.checks import at_least, positive
from fedpm_lightning.rng import torch_generator
from fedpm_lightning.round import Federation, Round
from fedpm_lightning.server.accounting import Adjacency, check_adjacency, epsilon
from fedpm_lightning.server.aggregator import Aggregator
from fedpm_lightning.server.preconditioned import Block, PreconditionedAggregator
from fedpm_lightning.server.private import Bound, PrivateMean, PrivateMixing
from fedpm_lightning.types import Params


class DifferentialPrivacy(Aggregation):
    """Clips what each client contributes, adds Gaussian noise to the sums, and records privacy/epsilon.

    Of a method that mixes by a mean the sum of updates; of FedPM the two sums of P_i and (W_i - W) P_i. The noise is
    the same on every rank and follows from seed and round.

    Args:
        clip: C, the largest Euclidean norm of a client's update over all parameters, of FedPM's products (W_i - W) P_i.
        noise_multiplier: z, the noise of one round: sigma = z C for a mean; 0: clipping alone, epsilon infinite.
        factor_clip: C_A, the largest Frobenius norm of a client's P_i over all layers; only of FedPM.
        factor_share: Share of a round's privacy that the P_i take, in (0, 1): sigma_A = z C_A / sqrt(share) and
            sigma = z C / sqrt(1 - share), so that epsilon is that of a mean with the same z.
        floor: Least eigenvalue of the noised sum of P_i, in units of the largest that its noise has.
        delta: delta of (epsilon, delta); null: N^-1.1.
        adjacency: replace_one, or add_or_remove_one where all clients take part in each round.

    Raises:
        ValueError: If a value is outside its range.
    """

    records = ("train/loss", "clients/returned", "clients/dropped", "privacy/")

    def __init__(
        self,
        clip: float,
        noise_multiplier: float,
        factor_clip: float | None = None,
        factor_share: float = 0.9,
        floor: float = 0.3,
        delta: float | None = None,
        adjacency: Adjacency = "replace_one",
    ) -> None:
        super().__init__()
        self.clip, self.noise_multiplier = positive("clip", clip), at_least("noise_multiplier", noise_multiplier, 0.0)
        self.factor_clip = None if factor_clip is None else positive("factor_clip", factor_clip)
        for name, value in {"factor_share": factor_share, "delta": 0.5 if delta is None else delta}.items():
            if not 0 < value < 1:
                raise ValueError(f"{name} must be in (0, 1), got {value}")
        self.factor_share, self.delta = factor_share, delta
        self.floor = at_least("floor", floor, 0.0)
        self.adjacency: Adjacency = adjacency

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse unsupported settings before anything runs, and print the guarantee.

        Raises:
            ValueError: If method, weights, buffers or sampling do not allow it.
            ImportError: If dp-accounting is not there.
        """
        federation, data = federation_of(pl_module), data_of(trainer)
        federation.set_up(data.num_clients)
        check(federation, data.cohort(0).sampling)
        self.blocks(federation, federation.method.aggregator(federation.make_broadcast(0), federation.server_state))
        delta, size = self.delta_of(data.num_clients), data.cohort_size
        rounds = trainer.max_epochs or 1
        spent = self.epsilon(rounds, data.num_clients, size)
        federation.print(
            f"DifferentialPrivacy: epsilon {spent:.4g} at delta {delta:.3g} after {rounds} rounds of {size} of "
            f"{data.num_clients} clients ({self.adjacency}); theta is covered, train/loss and other figures are not"
        )

    def delta_of(self, num_clients: int) -> float:
        """Return delta."""
        return num_clients**-1.1 if self.delta is None else self.delta

    def epsilon(self, rounds: int, num_clients: int, size: int) -> float:
        """Return epsilon after `rounds` rounds."""
        check_adjacency(self.adjacency, num_clients, size)
        delta = self.delta_of(num_clients)
        return epsilon(self.noise_multiplier, rounds, num_clients, size, delta, self.adjacency)

    def blocks(self, federation: Federation, own: Aggregator) -> list[Block]:
        """Return the blocks that are mixed by a P_i; empty for a method that mixes by a mean.

        Raises:
            ValueError: If the method needs other sums, or there is no bound for its P_i.
        """
        name, blocks = type(federation.method).__name__, None
        if federation.method.mixes == "mean":
            return []
        if type(own) is PreconditionedAggregator:
            blocks = own.blocks_of_two_sums()
        if blocks is None:
            raise ValueError(
                "DifferentialPrivacy covers means and FedPM's two sums (preconditioner.align 0, mix_off_diagonal 1), "
                f"and {name} mixes by other sums: use FedAvg, FedProx, FedSAM, MOON, LocalNewton, FedSophia or FedPM"
            )
        if self.factor_clip is None:
            raise ValueError(f"DifferentialPrivacy: {name} sends P_i as well: give factor_clip, their largest norm")
        return blocks

    def make_aggregator(self, round: Round) -> Aggregator:
        """Return the clipping sums of this round."""
        federation, own = round.federation, super().make_aggregator(round)
        check(federation, round.cohort.sampling)
        size, z = len(round.sampled), self.noise_multiplier
        generator = torch_generator(federation.seed, "privacy", round.number)
        blocks = self.blocks(federation, own)
        if not blocks:
            update = Bound(self.clip, z * self.clip)
            return PrivateMean(own, start_of(round), update, size, generator)
        factor_clip = self.factor_clip or 0.0
        update = Bound(self.clip, z * self.clip / math.sqrt(1 - self.factor_share))
        factor = Bound(factor_clip, z * factor_clip / math.sqrt(self.factor_share))
        return PrivateMixing(round.broadcast.params, blocks, update, factor, size, self.floor, generator)

    def aggregate(self, round: Round) -> Params:
        """Aggregate; record the privacy spent so far and how many clients were clipped."""
        target, clients, size = super().aggregate(round), round.method.num_clients, len(round.sampled)
        round.record("privacy/epsilon", self.epsilon(round.number + 1, clients, size))
        round.record("privacy/delta", self.delta_of(clients))
        sums, returned = self.aggregator, round.row["clients/returned"]
        if isinstance(sums, PrivateMean | PrivateMixing) and returned:
            for name, count in sums.clipped().items():
                round.record(f"privacy/{name}", count / returned)
        return target


def check(federation: Federation, sampling: str) -> None:
    """Check what every method must have.

    Raises:
        ValueError: Naming the key and the way out.
    """
    if federation.weighting != "uniform":
        raise ValueError("DifferentialPrivacy weighs clients alike, sizes would leak: set --model.weighting uniform")
    if sampling != "uniform":
        raise ValueError(f"DifferentialPrivacy accounts for uniform cohorts, not for data.sampling {sampling}")
    if federation.method.needs_preparation:
        name = type(federation.method).__name__
        raise ValueError(f"DifferentialPrivacy does not cover the first pass of {name}: set correction none")
    check_buffers(federation, "DifferentialPrivacy clips parameters only")


def start_of(round: Round) -> Params:
    """Return what a client's params are measured from: theta, or zeros where they are directions."""
    theta = round.broadcast.params
    directions = round.method.uploads == "direction"
    return {name: torch.zeros_like(p) for name, p in theta.items()} if directions else theta
