"""Sums of clipped contributions with Gaussian noise: what a server may release under client-level differential privacy.

With u_i = theta_i - theta (g_i for methods that send directions), S the size of the cohort, whoever returned of it:

    mean            theta + (1/S) (sum s_i u_i + N(0, sigma^2 I)),   s_i = min(1, C / ||u_i||)
    preconditioned  W + S2 [S1]_mu^-1,   S1 = sum t_i P_i + N_A,   S2 = sum s_i t_i (W_i - W) P_i + N(0, sigma^2 I)

McMahan, Ramage, Talwar, Zhang: Learning Differentially Private Recurrent Language Models (ICLR 2018), with a fixed
denominator and equal weights. In the second line, of FedPM, t_i = min(1, C_A / ||P_i||_F) with the norm over all layers
together, and s_i bounds the norm of all t_i (W_i - W) P_i and of the u_i of parameters without a P_i together by C. So
a client whose factors are clipped weighs less, and one whose products are clipped moves less. N_A is symmetric with
variance sigma_A^2 on its diagonal and half of it beside: isotropic in the Frobenius norm. Noise makes S1 indefinite:
its eigenvalues below mu become mu, in units of sigma_A sqrt(2 d), where the spectrum of N_A itself ends (Wigner).

One client that is replaced by another moves the first sum by at most 2 C and the second by at most 2 C_A; one that is
added or removed by half as much. The projection and the division are post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedpm_lightning.curvature.matrices.damping import RELATIVE_FLOOR
from fedpm_lightning.curvature.matrices.preconditioner import Preconditioner
from fedpm_lightning.curvature.rows.math import full_precision, mirrored, trace
from fedpm_lightning.server.aggregator import Aggregator
from fedpm_lightning.server.preconditioned import PRECONDITIONERS, Block
from fedpm_lightning.types import ClientUpdate, Params


@dataclass(frozen=True)
class Bound:
    """How much one client may contribute to a sum, and the noise that hides it.

    Attributes:
        clip: The largest norm of a contribution.
        noise: Standard deviation of the sum's noise, in the sum's own unit.
    """

    clip: float
    noise: float


class ClippedSum:
    """sum_i min(1, C / ||v_i||) v_i of named tensors, the norm over all of them together, in float64.

    Args:
        like: Tensors with the names, shapes and device.
        bound: C, and the noise of `noisy`.
    """

    def __init__(self, like: Mapping[str, Tensor], bound: Bound) -> None:
        self._bound = bound
        self._sums = {name: torch.zeros_like(t, dtype=torch.float64) for name, t in like.items()}
        self.clipped = torch.zeros((), dtype=torch.float64)  # clients

    def add(self, tensors: Mapping[str, Tensor]) -> None:
        """Add one client's tensors; names that it leaves out count as zeros."""
        scale = self.scale(sum(float(t.double().square().sum()) for t in tensors.values()))
        for name, tensor in tensors.items():
            total = self._sums[name]
            total.add_(tensor.to(total), alpha=scale)

    def scale(self, squared_norm: float) -> float:
        """Return the factor that clips a contribution of this squared norm, and count it."""
        norm = math.sqrt(squared_norm)
        self.clipped += float(norm > self._bound.clip)
        return min(1.0, self._bound.clip / norm) if norm else 1.0

    def tensors(self) -> list[Tensor]:
        """Return the running sums and the number of clipped clients, to be all-reduced in place."""
        return [*self._sums.values(), self.clipped]

    def noisy(self, generator: torch.Generator) -> Params:
        """Return the sums with noise."""
        return {name: total + normal(total, self._bound.noise, generator) for name, total in self._sums.items()}


class FactorSum(ClippedSum):
    """sum_i t_i P_i of every block; only the lower triangles of the running sums count."""

    def add_factors(self, P: Mapping[str, Preconditioner]) -> float:
        """Add one client's P_i, in float64 on this device; return t_i."""
        scale = self.scale(sum(float(own.squared_norm()) for own in P.values()))
        for name, own in P.items():
            own.add_to(self._sums[name], scale)
        return scale

    def noisy(self, generator: torch.Generator) -> Params:
        """Return the symmetric sums with symmetric noise."""
        draws = {name: normal(total, self._bound.noise, generator) for name, total in self._sums.items()}
        return {name: mirrored(total) + (draws[name] + draws[name].mT) / 2 for name, total in self._sums.items()}


class PrivateMean(Aggregator):
    """The mean of clipped updates over a fixed number of clients, noised, in the place of a method's own mean.

    Args:
        base: The method's own aggregator, which turns the result into a target as it does with the mean.
        start: What updates are measured from: theta, or zeros where they are directions.
        update: Bound and noise of the sum.
        size: S, whoever returned.
        generator: The round's noise, the same on every rank.
    """

    def __init__(self, base: Aggregator, start: Params, update: Bound, size: int, generator: torch.Generator) -> None:
        self._base, self._start, self._size, self._generator = base, start, size, generator
        self._sum = ClippedSum(start, update)

    def add(self, update: ClientUpdate, weight: float) -> None:
        """Add one client's clipped update; all weigh the same."""
        self._sum.add({name: update.params[name].double() - p for name, p in self._start.items()})

    def clipped(self) -> dict[str, float]:
        """Return how many clients were clipped, by what of them was."""
        return {"clipped": float(self._sum.clipped)}

    def tensors(self) -> list[Tensor]:
        """Return the sums."""
        return self._sum.tensors()

    def finish(self) -> Params:
        """Return the method's target for the noised mean."""
        total = self._sum.noisy(self._generator)
        mean = {name: (p + total[name] / self._size).to(p.dtype) for name, p in self._start.items()}
        self._base.add(ClientUpdate(-1, 0, 0, mean), 1.0)
        return self._base.finish()


class PrivateMixing(Aggregator):
    """FedPM's mixing from noised sums; parameters without a P_i get the noised mean.

    Args:
        theta: The round's starting parameters.
        blocks: The blocks of parameters that carry a preconditioner.
        update: Bound and noise of the products (W_i - W) P_i, together with the u_i of all other parameters.
        factor: Bound and noise of the P_i.
        size: S, whoever returned.
        floor: mu, in units of sigma_A sqrt(2 d).
        generator: The round's noise, the same on every rank.
    """

    def __init__(
        self,
        theta: Params,
        blocks: Sequence[Block],
        update: Bound,
        factor: Bound,
        size: int,
        floor: float,
        generator: torch.Generator,
    ) -> None:
        self._theta, self._size, self._edge, self._generator = theta, size, floor * factor.noise, generator
        self._blocks = {block.name: block for block in blocks}
        self._W = {name: block.matrix(theta).double() for name, block in self._blocks.items()}
        mixed = {name for block in blocks for name in block.params}
        self._plain = {name: p for name, p in theta.items() if name not in mixed}
        self._moves = ClippedSum({**self._plain, **{_product(name): W for name, W in self._W.items()}}, update)
        square = {name: W.new_zeros(*W.shape[:-2], W.shape[-1], W.shape[-1]) for name, W in self._W.items()}
        self._factors = FactorSum(square, factor)

    def add(self, update: ClientUpdate, weight: float) -> None:
        """Add one client's clipped P_i and (W_i - W) P_i; all clients weigh the same."""
        sent: dict[str, Preconditioner] = update.message[PRECONDITIONERS]
        P = {name: own.to(self._W[name].device, torch.float64) for name, own in sent.items()}
        scale = self._factors.add_factors(P)
        moves = {name: update.params[name].double() - p for name, p in self._plain.items()}
        for name, own in P.items():
            W = self._W[name]
            moves[_product(name)] = product = torch.zeros_like(W)
            own.add_product(product, self._blocks[name].matrix(update.params).to(W) - W, scale)
        self._moves.add(moves)

    def clipped(self) -> dict[str, float]:
        """Return how many clients were clipped, by what of them was."""
        return {"clipped": float(self._moves.clipped), "clipped_factors": float(self._factors.clipped)}

    def tensors(self) -> list[Tensor]:
        """Return the sums."""
        return self._moves.tensors() + self._factors.tensors()

    def finish(self) -> Params:
        """Return the mixed parameters."""
        moves, S1 = self._moves.noisy(self._generator), self._factors.noisy(self._generator)
        target = {name: (p + moves[name] / self._size).to(p.dtype) for name, p in self._plain.items()}
        for name, block in self._blocks.items():
            mu = self._edge * math.sqrt(2 * S1[name].shape[-1])
            target |= block.unpack(self._W[name] + projected_solve(S1[name], moves[_product(name)], mu), self._theta)
        return {name: target[name] for name in self._theta}


def projected_solve(S1: Tensor, S2: Tensor, mu: float) -> Tensor:
    """Return S2 [S1]_mu^-1, [*, out, d]: eigenvalues of the symmetric S1 [*, d, d] below mu become mu.

    mu is at least 1e-8 of trace(S1)/d, as a relative damping is.
    """
    with full_precision(S1.device):
        values, vectors = torch.linalg.eigh(S1)
        least = (RELATIVE_FLOOR * trace(S1) / S1.shape[-1]).clamp_min(max(mu, torch.finfo(S1.dtype).tiny))
        return ((S2 @ vectors) / values.clamp_min(least.unsqueeze(-1)).unsqueeze(-2)) @ vectors.mT


def normal(like: Tensor, std: float, generator: torch.Generator) -> Tensor:
    """Draw N(0, std^2) float64 numbers in the shape and on the device of `like`, from a CPU generator."""
    return (std * torch.randn(like.shape, dtype=torch.float64, generator=generator)).to(like.device)


def _product(block: str) -> str:
    """Return the key of a block's products among parameters' names."""
    return f"{block} P"
