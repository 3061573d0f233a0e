"""The two ways to mix parameters, as pure functions and as running sums.

    weighted mean       theta <- sum w_i theta_i / sum w_i
    preconditioned      W <- W + (sum w_i (W_i - W) P_i)(sum w_i P_i)^-1    one layer; FedPM, arXiv:2511.09100

The running sums are what makes a round stream: their size does not depend on the number of clients, they may
be all-reduced across ranks (`tensors`), and only they need to be revealed to the server.

Deviations from the paper:
    - It writes (sum w_i W_i P_i)(sum w_i P_i)^-1. The difference form, W the round's starting weights, is the
      same in exact arithmetic and loses no digits when A is badly conditioned. Sums and solve are float64.
    - Where sum w_i P_i is not positive definite, the damping of every P_i is raised alike (see below).
    - `off_diagonal` below 1 multiplies the off-diagonal entries of every P_i in the mixing by it, as RegMean (Jin et
      al., ICLR 2023) does with the Gram matrices of linear layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedpm_lightning.curvature.matrices.damping import RELATIVE_FLOOR, NonFiniteCurvatureError, damped_cholesky
from fedpm_lightning.curvature.matrices.preconditioner import Preconditioner
from fedpm_lightning.curvature.matrices.shared_start import StartedPreconditioner
from fedpm_lightning.curvature.matrices.woodbury import LowRankPreconditioner
from fedpm_lightning.curvature.rows.math import mirrored, trace
from fedpm_lightning.types import Params


class RunningMean:
    """The running weighted mean of named tensors, in float64.

    Args:
        like: Tensors with the names, shapes, dtypes and device to mix. Integer ones (counters) are never
            averaged: `finish` returns them as they are here.
    """

    def __init__(self, like: Mapping[str, Tensor]) -> None:
        self._like = dict(like)
        self._sums = {n: t.new_zeros(t.shape, dtype=torch.float64) for n, t in like.items() if _mixes(t)}
        device = next((t.device for t in like.values()), torch.device("cpu"))
        self._weight = torch.zeros((), dtype=torch.float64, device=device)

    def add(self, tensors: Mapping[str, Tensor], weight: float) -> None:
        """Add one client's tensors.

        Raises:
            KeyError: If one of the names is missing.
            ValueError: If `weight` is negative or not finite.
        """
        _check_weight(weight)
        for name, total in self._sums.items():
            total.add_(tensors[name].to(total), alpha=weight)
        self._weight += weight

    @property
    def total_weight(self) -> float:
        """The sum of the weights so far; 0 when nothing was added."""
        return float(self._weight)

    def tensors(self) -> list[Tensor]:
        """Return the running sums, in a fixed order, to be all-reduced in place."""
        return [*self._sums.values(), self._weight]

    def finish(self) -> Params:
        """Return the mean, each tensor in its own dtype.

        Raises:
            ValueError: If the weights sum to 0.
        """
        weight = _total(self._weight)
        return {n: (self._sums[n] / weight).to(t.dtype) if _mixes(t) else t for n, t in self._like.items()}


class RunningFactorMean:
    """S1 = sum w_i P_i of one layer in float64, with sum w_i delta_i and sum w_i: the clients' mean P and mean A.

    Args:
        d: Columns of the layer.
        like: A float64 tensor [*, ...] on the server's device whose leading axes are the layer's groups.
    """

    def __init__(self, d: int, like: Tensor) -> None:
        groups = like.shape[:-2]
        self._S1 = like.new_zeros(*groups, d, d)
        self.delta = like.new_zeros(groups)
        self.weight = like.new_zeros(())
        self.dense = like.new_zeros(())
        """sum w_i of the clients that sent more than few rows."""
        self.start: Tensor | None = None
        """A_0 [d, d], which some P_i share: c_i A_0 is added once for all of them."""
        self._shares = 0.0  # sum w_i c_i that S1 still lacks

    def add(self, P: Preconditioner, weight: float) -> tuple[Preconditioner, float]:
        """Add one client's P_i; return what is to be added of it here and now, on this device, and c_i."""
        share = 0.0
        self.dense += weight * (not isinstance(P, LowRankPreconditioner))
        own = P
        if isinstance(P, StartedPreconditioner) and self.start is not None:
            own, share = P.own, P.start.share
        here = own.to(self._S1.device, self._S1.dtype)
        here.add_to(self._S1, weight)
        self.delta.add_(here.delta, alpha=weight)
        self.weight += weight
        self._shares += weight * share
        return here, share

    @property
    def S1(self) -> Tensor:
        """Sum w_i P_i, of which the lower triangle counts."""
        if self._shares and self.start is not None:
            self._S1.add_(self.start.to(self._S1), alpha=self._shares)
            self._shares = 0.0
        return self._S1

    def tensors(self) -> list[Tensor]:
        """Return S1 and the sums of dampings and weights, to be all-reduced in place."""
        return [self.S1, self.delta, self.weight, self.dense]

    @property
    def mean_factor(self) -> Tensor:
        """The mean factor sum w_i A_i / sum w_i, [*, d, d]: S1 less the damping that each P_i really carried."""
        A = mirrored(self.S1)
        A.diagonal(dim1=-2, dim2=-1).sub_(self.delta.unsqueeze(-1))
        return A / self.weight


class RunningPreconditionedMix:
    """FedPM's mixing of one layer, in float64 sums: S1 = sum w_i P_i, S2 = sum w_i (W_i - W) P_i.

    A third sum, D = sum w_i (W_i - W), serves one case: where S1 is not definite (factors rounded to float32 and
    next to no damping) every P_i gets the same extra damping e, logged: S1 + e sum w_i I and S2 + e D. Clients
    that agree are then still a fixed point, which damping S1 alone would break.

    Args:
        layer: The layer's name, for messages.
        W: The round's starting weights [*, out, d], as every client received them.
        off_diagonal: Factor on the off-diagonal entries of every P_i, in [0, 1].
    """

    def __init__(self, layer: str, W: Tensor, off_diagonal: float = 1.0) -> None:
        self.layer = layer
        self._W, self._dtype = W.detach().double(), W.dtype
        self.factors = RunningFactorMean(W.shape[-1], self._W)
        self._S2, self._D = torch.zeros_like(self._W), torch.zeros_like(self._W)
        self._shared: Tensor | None = None  # sum w_i c_i (W_i - W), whose product with A_0 the sums still lack
        self._share = off_diagonal
        # sum w_i (W_i - W) diag(P_i), where the off-diagonal entries are shrunk
        self._diagonal = torch.zeros_like(self._W) if off_diagonal < 1 else None

    def add(self, W: Tensor, P: Preconditioner, weight: float) -> None:
        """Add one client's weights W_i [*, out, d] and its P_i.

        Raises:
            ValueError: If `weight` is negative or not finite.
        """
        _check_weight(weight)
        difference = torch.sub(W.to(self._W.device), self._W)
        here, share = self.factors.add(P, weight)
        if share:
            shared = torch.zeros_like(self._W) if self._shared is None else self._shared
            self._shared = shared.add_(difference, alpha=weight * share)
        here.add_product(self._S2, difference, weight)
        self._D.add_(difference, alpha=weight)
        if self._diagonal is not None:
            self._diagonal.add_(difference * here.diagonal().unsqueeze(-2), alpha=weight)

    def _add_shared_products(self) -> None:
        """Add the products with A_0 to the sums."""
        if self._shared is None or self.factors.start is None:
            return
        A = self.factors.start.to(self._W)
        self._S2.addmm_(self._shared, A)
        if self._diagonal is not None:
            self._diagonal.addcmul_(self._shared, A.diagonal())
        self._shared = None

    @property
    def shrinks(self) -> bool:
        """Whether off-diagonal entries are shrunk, which takes one more sum."""
        return self._diagonal is not None

    @property
    def empty(self) -> bool:
        """Whether no client has contributed yet."""
        return float(self.factors.weight) == 0

    def tensors(self) -> list[Tensor]:
        """Return the running sums, to be all-reduced in place."""
        self._add_shared_products()
        return [*self.factors.tensors(), self._S2, self._D, *([] if self._diagonal is None else [self._diagonal])]

    def finish(self) -> Tensor:
        """Return W + S2 S1^-1, [*, out, d], in the dtype of the starting weights.

        Raises:
            CurvatureError: If a sum is not finite, or S1 is not definite at any allowed damping.
            ValueError: If the weights sum to 0.
        """
        weight, d = _total(self.factors.weight), self._W.shape[-1]
        S1, product = self._shrunk()
        scale, noise = trace(S1) / d, max(torch.finfo(self._dtype).eps * d, RELATIVE_FLOOR)
        L, extra = damped_cholesky(S1, torch.zeros_like(scale), scale, self.layer, start=noise)
        S2 = product + (extra / weight)[..., None, None] * self._D
        step = torch.cholesky_solve(S2.mT, L).mT
        if not step.isfinite().all():
            raise NonFiniteCurvatureError(f"layer {self.layer!r}: the clients' weights have NaN or Inf; lower lr")
        return (self._W + step).to(self._dtype)

    def _shrunk(self) -> tuple[Tensor, Tensor]:
        """Return S1 and S2 of the P_i whose off-diagonal entries are multiplied by `off_diagonal`."""
        self._add_shared_products()
        S1, S2 = self.factors.S1, self._S2
        if self._diagonal is None:
            return S1, S2
        shrunk = self._share * S1
        shrunk.diagonal(dim1=-2, dim2=-1).copy_(S1.diagonal(dim1=-2, dim2=-1))
        return shrunk, torch.lerp(self._diagonal, S2, self._share)


def weighted_mean(clients: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> Params:
    """Return sum w_i theta_i / sum w_i, computed in float64; integer tensors are the first client's.

    Raises:
        ValueError: If there are no clients, or the weights are negative, not finite, or sum to 0.
    """
    if not clients:
        raise ValueError("weighted_mean needs at least one client")
    mean = RunningMean(clients[0])
    for tensors, weight in zip(clients, weights, strict=True):
        mean.add(tensors, weight)
    return mean.finish()


def preconditioned_mix(
    W: Tensor,
    clients: Sequence[Tensor],
    P: Sequence[Preconditioner],
    weights: Sequence[float],
    layer: str = "W",
) -> Tensor:
    """Return W + (sum w_i (W_i - W) P_i)(sum w_i P_i)^-1 for one layer, [*, out, d].

    Args:
        W: The round's starting weights.
        clients: W_i.
        P: P_i.
        weights: w_i; only their ratios matter.
        layer: The layer's name, for messages.

    Raises:
        CurvatureError: If a P_i or W_i is not finite, or their sum is not definite at any allowed damping.
        ValueError: If the weights are negative, not finite, or sum to 0.
    """
    mix = RunningPreconditionedMix(layer, W)
    for W_i, P_i, weight in zip(clients, P, weights, strict=True):
        mix.add(W_i, P_i, weight)
    return mix.finish()


def _mixes(tensor: Tensor) -> bool:
    """Whether a tensor can be averaged."""
    return tensor.is_floating_point()


def _check_weight(weight: float) -> None:
    if not (weight >= 0 and weight < float("inf")):
        raise ValueError(f"a mixing weight must be a finite number >= 0, got {weight}")


def _total(weight: Tensor) -> float:
    """Return sum w_i as a number, or say that nothing was added."""
    total = float(weight)
    if not total > 0:
        raise ValueError("the mixing weights sum to 0: no client of this round returned an update")
    return total
