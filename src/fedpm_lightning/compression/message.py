"""Compression of a client's upload, and of the factors in the broadcast.

What is rounded is the change c_i = theta_i - theta since the broadcast (a direction itself, where a method uploads
one), after every hook has seen the update. The server rebuilds theta + C(c_i) and adds up nothing else.

    error feedback    c_i + e_i is sent instead, and e_i <- c_i + e_i - C(c_i + e_i) stays with the client (Seide et
                      al. 2014; Karimireddy et al. 2019): what was sent and e_i always sum up to all changes
    factors_every k   P_i travels in every k-th round, and with a client's first upload; the server keeps the last

An upload that never arrives leaves e_i and the kept P_i as they were.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from fedpm_lightning.checks import at_least, is_mapping
from fedpm_lightning.compression.factors import FactorForm, PackedFactor, pack
from fedpm_lightning.compression.packed import Int8Rows, Largest, Levels, Numbers, Packed
from fedpm_lightning.curvature.matrices.preconditioner import Preconditioner
from fedpm_lightning.curvature.matrices.shared_start import StartedPreconditioner
from fedpm_lightning.curvature.matrices.woodbury import LowRankPreconditioner
from fedpm_lightning.types import Broadcast, ClientState, ClientUpdate, Params

ParameterForm: TypeAlias = Literal["full", "bfloat16", "int8", "topk", "qsgd"]
Rounding: TypeAlias = Literal["stochastic", "nearest"]

RESIDUAL, FACTORS = "residual", "factors"
"""Keys of e_i and of the last P_i that was sent, in what a client keeps for its messages."""

Factors: TypeAlias = Mapping[str, Preconditioner]


class Message:
    """The form of uploads, and of factors in the broadcast.

    Args:
        parameters: full (as they are), bfloat16, int8 (a scale a row), topk or qsgd.
        rounding: Of parameters in int8: stochastic (unbiased) or nearest. QSGD is always stochastic; bfloat16 and
            factors are rounded to the nearest.
        share: Of all numbers together that topk keeps, in (0, 1]; null with any other form.
        levels: QSGD's levels s above zero, in 1..127: 1 takes 2 bits a number, 7 take 4, 127 take 8.
        bucket: Neighbouring numbers with one norm in QSGD, at least 1.
        error_feedback: Whether what rounding left out joins the client's next change.
        factors: full, bfloat16 or int8 (of the Cholesky factor), or low_rank (eigenvectors in bfloat16, and the
            diagonal). A method without factors has none to send, and a diagonal preconditioner travels as it is.
        factor_share: Share of the trace that low_rank's eigenvectors hold, in (0, 1].
        factors_every: Rounds between two uploads of a client's factors.
        broadcast_factors: As `factors`, for the factors that the server sends (`align` of Foof).

    Raises:
        ValueError: If a value is outside its range, or two of them exclude each other.
    """

    def __init__(
        self,
        parameters: ParameterForm = "full",
        rounding: Rounding = "stochastic",
        share: float | None = None,
        levels: int = 7,
        bucket: int = 512,
        error_feedback: bool = False,
        factors: FactorForm = "full",
        factor_share: float = 0.95,
        factors_every: int = 1,
        broadcast_factors: FactorForm = "full",
    ) -> None:
        self.parameters: ParameterForm = one_of("parameters", parameters, ("full", "bfloat16", "int8", "topk", "qsgd"))
        self.rounding: Rounding = one_of("rounding", rounding, ("stochastic", "nearest"))
        if (parameters == "topk") != (share is not None):
            raise ValueError(f"message: topk and a share in (0, 1] go together, got {parameters} and {share}")
        self.share = within("share", 1.0 if share is None else share)
        if not 1 <= levels <= 127:
            raise ValueError(f"message: levels must be in 1..127, got {levels}: 127 take 8 bits a number")
        self.levels, self.bucket = levels, int(at_least("bucket", bucket, 1))
        if error_feedback and parameters in ("full", "qsgd"):
            why = "nothing is left out" if parameters == "full" else "its error may exceed what it sends"
            raise ValueError(f"message: error_feedback cannot go with parameters {parameters}: {why}")
        self.error_feedback = error_feedback
        forms: tuple[FactorForm, ...] = ("full", "bfloat16", "int8", "low_rank")
        self.factors: FactorForm = one_of("factors", factors, forms)
        self.broadcast_factors: FactorForm = one_of("broadcast_factors", broadcast_factors, forms)
        self.factor_share = within("factor_share", factor_share)
        self.factors_every = int(at_least("factors_every", factors_every, 1))

    @property
    def packs_uploads(self) -> bool:
        """Whether anything that a client sends is not sent as it is in every round."""
        return self.parameters != "full" or self.factors != "full" or self.factors_every > 1

    @property
    def stateful(self) -> bool:
        """Whether a client's messages need state between rounds, so that it stays on one rank."""
        return self.error_feedback or self.factors_every > 1

    def pack(
        self, update: ClientUpdate, theta: Params, state: ClientState, round: int, generator: torch.Generator
    ) -> ClientState:
        """Replace an update's parts by what the server rebuilds of them, and note what was sent.

        Args:
            update: Changed in place.
            theta: What the client received; empty where `update.params` are directions.
            state: What this returned at the client's last upload that arrived; empty at first.
            round: 0-based.
            generator: Draws the rounding.

        Returns:
            What is to be kept for the client's next message.
        """
        kept: ClientState = {}
        if self.parameters != "full":
            kept |= self._pack_change(update, theta, state.get(RESIDUAL, {}), generator)
        if self.factors != "full" or self.factors_every > 1:
            kept |= self._pack_factors(update, state.get(FACTORS, {}), round)
        return kept

    def _pack_change(
        self, update: ClientUpdate, theta: Params, residual: Params, generator: torch.Generator
    ) -> ClientState:
        change = {name: p - theta[name] if theta else p for name, p in update.params.items()}
        change = {name: c + residual[name].to(c) if name in residual else c for name, c in change.items()}
        update.packed["params"], sent = self.encode(change, generator)
        update.params = {name: theta[name] + c if theta else c for name, c in sent.items()}
        return {RESIDUAL: {name: c - sent[name] for name, c in change.items()}} if self.error_feedback else {}

    def encode(self, change: Params, generator: torch.Generator) -> tuple[dict[str, Packed], Params]:
        """Return a change as it is sent, and as it is rebuilt."""
        if self.parameters in ("topk", "qsgd"):  # all numbers as one vector
            packed = self._whole(torch.cat([c.flatten() for c in change.values()]), generator)
            parts = packed.decode().split([c.numel() for c in change.values()])
            rebuilt = zip(change.items(), parts, strict=True)
            return {"all": packed}, {name: part.view(c.shape).to(c.dtype) for (name, c), part in rebuilt}
        forms = {name: self._by_tensor(c, generator) for name, c in change.items()}
        return forms, {name: form.decode().to(change[name].dtype) for name, form in forms.items()}

    def _whole(self, vector: Tensor, generator: torch.Generator) -> Packed:
        if self.parameters == "topk":
            return Largest.of(vector, self.share)
        return Levels.of(vector, self.levels, self.bucket, generator)

    def _by_tensor(self, c: Tensor, generator: torch.Generator) -> Packed:
        if self.parameters == "bfloat16":
            return Numbers.of(c, torch.bfloat16)
        return Int8Rows.of(c, generator if self.rounding == "stochastic" else None)

    def _pack_factors(self, update: ClientUpdate, last: Mapping[str, Any], round: int) -> ClientState:
        kept: ClientState = {}
        due = round % self.factors_every == 0
        for key, P in factors_in(update.message).items():
            old: dict[str, Any] = {} if due else {name: one for name, one in last.get(key, {}).items() if name in P}
            fresh = {n: pack(one, self.factors, self.factor_share) for n, one in P.items() if n not in old}
            forms = {name: fresh[name] if name in fresh else unpacked(name, old[name], P[name]) for name in P}
            update.message = {**update.message, key: rebuilt(P, forms)}
            update.packed[key] = {name: form or P[name] for name, form in fresh.items()}
            if self.factors_every > 1:
                kept[key] = {name: form.state() for name, form in forms.items() if form is not None}
        return {FACTORS: kept} if kept else {}

    def pack_broadcast(self, broadcast: Broadcast) -> None:
        """Replace the factors that the server sends by what clients rebuild of them."""
        if self.broadcast_factors == "full":
            return
        for key, P in factors_in(broadcast.extra).items():
            form, share = self.broadcast_factors, self.factor_share
            forms = {name: pack(one, form, share, damped=False) for name, one in P.items()}
            broadcast.packed[key] = {name: form or P[name] for name, form in forms.items()}
            broadcast.extra[key] = rebuilt(P, forms)


def factors_in(message: Mapping[str, Any]) -> dict[str, Factors]:
    """Return the parts of a message that are preconditioners by layer."""
    found: dict[str, Factors] = {}
    for key, part in message.items():
        if is_mapping(part) and part and all(isinstance(P, Preconditioner) for P in part.values()):
            found[key] = part
    return found


def unpacked(layer: str, kept: Mapping[str, Any], like: Preconditioner) -> PackedFactor:
    """Return the P of an earlier round that was kept, on the device of this round's."""
    return PackedFactor.of_state(layer, kept, like.factor.device)


def rebuilt(P: Factors, forms: Mapping[str, PackedFactor | None]) -> dict[str, Preconditioner]:
    """Return what the receiver has: a P that travels as it is, or what its form decodes to."""
    return {name: P[name] if form is None else beside_start(P[name], form.decode()) for name, form in forms.items()}


def beside_start(P: Preconditioner, sent: Preconditioner) -> Preconditioner:
    """Return what was sent, beside the start that P shares with all clients, if it does."""
    if isinstance(P, StartedPreconditioner) and isinstance(sent, LowRankPreconditioner):
        return P.with_own(sent)
    return sent


def one_of(name: str, value: Any, known: tuple[Any, ...]) -> Any:
    """Return a value that is one of the known ones.

    Raises:
        ValueError: If it is none of them.
    """
    if value not in known:
        raise ValueError(f"message: {name} must be one of {', '.join(known)}, got {value!r}")
    return value


def within(name: str, value: float) -> float:
    """Return a share above 0 and of at most 1.

    Raises:
        ValueError: If it is outside.
    """
    if not 0 < value <= 1:
        raise ValueError(f"message: {name} must be in (0, 1], got {value}")
    return value
