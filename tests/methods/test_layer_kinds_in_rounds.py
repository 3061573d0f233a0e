"""FedPM over the layers of a Transformer: the server's mixing by dense solves, bytes, alignment, and both executors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedpm_lightning.client.executor import Sequential, Vectorized
from fedpm_lightning.curvature.matrices.diagonal import DiagonalPreconditioner
from fedpm_lightning.methods import FedPM
from fedpm_lightning.models.transformer import Positions, TransformerBlock
from fedpm_lightning.preconditioners import Foof
from fedpm_lightning.server.preconditioned import PRECONDITIONERS, SHARED_FACTORS
from fedpm_lightning.testing import METHOD_CHECKS, InMemoryClient, MethodCase, check_ranks
from fedpm_lightning.testing.rounds import Rounds
from fedpm_lightning.testing.stacks import ExecutorRounds, clients_of, close, same_update
from fedpm_lightning.types import LocalWork

VOCABULARY = 7


class TokenModel(nn.Module):
    """Numbers become tokens; embedding, positions, a causal block, and a head on the last token."""

    def __init__(self, block: bool = True) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(VOCABULARY, 4), Positions(6, 4)
        self.block = TransformerBlock(4, 2, 6, causal=True) if block else nn.Identity()
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.abs().mul(3).long().clamp(max=VOCABULARY - 1)
        return self.head(self.norm(self.block(self.positions(self.embedding(tokens)))).mean(1))


class Attention(nn.Module):
    """Torch's attention, sequences first, and a one-dimensional convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 4, 3, padding=1)
        self.attention, self.head = nn.MultiheadAttention(4, 2), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.conv(x.unsqueeze(1)).mT.transpose(0, 1)
        return self.head(self.attention(z, z, z)[0].mean(0))


class Volumes(nn.Module):
    """A convolution over three axes, and norm layers over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv3d(1, 4, (1, 2, 1)), nn.GroupNorm(2, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.conv(x.view(-1, 1, 1, 2, 3))).flatten(2).mean(-1))


class Borrowed(nn.Module):
    """A network that uses its embedding a second time, functionally."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.head(self.embedding(x.abs().mul(3).long().clamp(max=VOCABULARY - 1)).mean(1))
        return F.linear(z, self.embedding.weight[:3])


DIAGONAL = partial(Foof, norms="diagonal", damping=1.0)


def token_clients() -> list[InMemoryClient]:
    """Three clients; token 6 is the last one's alone, token 5 nobody's."""
    g = torch.Generator().manual_seed(1)
    clients = []
    for k in range(3):
        tokens = torch.randint(0, 5, (8 + k, 5), generator=g)
        if k == 2:
            tokens[:4, 0] = 6
        x = (tokens.double() + 0.5) / 3
        clients.append(InMemoryClient(k, x, torch.randint(0, 3, (len(x),), generator=g)))
    return clients


def test_the_mixing_of_rows_is_that_of_a_dense_solve_and_a_token_is_decided_by_who_saw_it() -> None:
    foof = DIAGONAL(damping=1e-3, damping_mode="absolute")
    run = Rounds(FedPM(mix_damping=1e-9, preconditioner=foof), TokenModel(block=False).double(), token_clients())
    start = run.theta
    theta = run.step()
    tokens = [client.x.mul(3).long() for client in token_clients()]
    f = torch.stack([F.one_hot(t, VOCABULARY).double().flatten(0, 1).mean(0) for t in tokens])
    W_i = torch.stack([update.params["embedding.weight"] for update in run.updates])
    for row in (0, 1, 2, 3, 4, 6):
        p = f[:, row] + 1e-9
        mixed = (p[:, None] * W_i[:, row]).sum(0) / p.sum()
        torch.testing.assert_close(theta["embedding.weight"][row], mixed, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(theta["embedding.weight"][6], W_i[2, 6], rtol=1e-6, atol=1e-8)
    assert not torch.equal(W_i[2, 6], start["embedding.weight"][6])
    torch.testing.assert_close(theta["embedding.weight"][5], start["embedding.weight"][5])

    P_i = [update.message[PRECONDITIONERS]["norm"] for update in run.updates]
    for part, name in ((slice(0, 4), "norm.weight"), (slice(4, 8), "norm.bias")):
        p = torch.stack([P.dense()[part, 0, 0] for P in P_i])
        mixed = (p * torch.stack([u.params[name] for u in run.updates])).sum(0) / p.sum(0)
        torch.testing.assert_close(theta[name], mixed, rtol=1e-10, atol=1e-12)


def test_a_diagonal_is_sent_as_so_many_numbers() -> None:
    run = Rounds(FedPM(preconditioner=DIAGONAL(align=5.0)), TokenModel(block=False).double(), token_clients())
    run.step()
    sizes = {"embedding": VOCABULARY, "positions.embedding": 6, "norm": 8}
    for name, P in run.updates[0].message[PRECONDITIONERS].items():
        assert isinstance(P, DiagonalPreconditioner) == (name in sizes)
        assert P.wire_bytes == 8 * sizes.get(name, 5 * 6 // 2 + 1)
    sent = run.method.broadcast_extra(run.server)[SHARED_FACTORS]
    assert {name: P.wire_bytes for name, P in sent.items() if name in sizes} == {n: 8 * d for n, d in sizes.items()}


@pytest.mark.parametrize("factor", ["last", "ema", "own", "full_pass"])
def test_every_factor_of_the_mixing_keeps_its_form(factor: str) -> None:
    method = FedPM(mix_factor=factor, preconditioner=DIAGONAL(align=3.0))  # pyright: ignore[reportArgumentType]
    run = Rounds(method, TokenModel(block=False).double(), token_clients(), LocalWork(steps=3))
    run.step()
    run.step()
    tokens = F.one_hot(token_clients()[0].x.mul(3).long(), VOCABULARY).double().flatten(0, 1).mean(0)
    A = run.updates[0].message[PRECONDITIONERS]["embedding"]
    assert isinstance(A, DiagonalPreconditioner)
    if factor in ("own", "full_pass"):
        torch.testing.assert_close(A.factor.flatten(), tokens)
    else:
        assert not torch.allclose(A.factor.flatten(), tokens)


ALIGNED = DIAGONAL(align=4.0, cov_every=3, inv_every=3, spatial="sum")


@pytest.mark.parametrize(
    ("net", "foof"), [(TokenModel, DIAGONAL()), (TokenModel, ALIGNED), (Attention, ALIGNED), (Volumes, ALIGNED)]
)
def test_stacked_clients_train_like_single_ones(net: type[nn.Module], foof: Foof) -> None:
    """Unequal clients over two rounds."""
    clients, start = clients_of((16, 1, 7, 9)), net()
    alone = ExecutorRounds(FedPM(preconditioner=foof), start, Sequential(), clients)
    stacked = ExecutorRounds(FedPM(preconditioner=foof), start, Vectorized(4), clients)
    for _ in range(2):
        one, other = alone.step(), stacked.step()
        assert all(same_update(one[k], other[k]) for k in one)
    assert close(alone.theta, stacked.theta, 1e-10)
    assert stacked.said == [], "nobody trained alone after all"


class Shift(nn.Module):
    """Negative inputs have tokens of their own."""

    def forward(self, x: Tensor) -> Tensor:
        return (x + 1).clamp(min=0)


class TokenCase(MethodCase):
    """A network with an Embedding, a norm layer and a Linear layer."""

    def net(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return nn.Sequential(Shift(), TokenModel(block=False))


@pytest.mark.parametrize("check", METHOD_CHECKS, ids=lambda check: check.__name__)
def test_diagonal_factors_that_start_from_the_cohorts_keep_the_contract(check: Callable[[MethodCase], None]) -> None:
    check(TokenCase(lambda: FedPM(lr=1.0, preconditioner=ALIGNED)))


def test_two_ranks_mix_diagonals_as_one(tmp_path: Path) -> None:
    check_ranks(TokenCase(lambda: FedPM(preconditioner=ALIGNED)), tmp_path)


def test_a_weight_that_is_used_functionally_trains_plainly() -> None:
    clients = token_clients()
    run = Rounds(FedPM(lr=0.3, preconditioner=Foof(damping=1.0)), Borrowed().double(), clients)
    run.federation.set_up(len(clients), clients[0].x[:2])
    assert "used outside of its layer: embedding.weight" in run.federation.rules[0]
    start = run.theta
    theta = run.step()
    mean = sum(update.params["embedding.weight"] for update in run.updates) / 3
    torch.testing.assert_close(theta["embedding.weight"], mean)
    net, (x, y) = Borrowed().double(), next(clients[0].everything(100))
    net.load_state_dict(start)
    F.cross_entropy(net(x), y).backward()
    assert net.embedding.weight.grad is not None
    stepped = start["embedding.weight"] - 0.3 * net.embedding.weight.grad
    torch.testing.assert_close(run.updates[0].params["embedding.weight"], stepped)


def test_norm_layers_are_plain_unless_asked_for() -> None:
    """Existing runs keep their figures."""
    run = Rounds(FedPM(), TokenModel().double(), token_clients())
    run.step()
    assert not any("norm" in name for name in run.updates[0].message[PRECONDITIONERS])
    with pytest.raises(ValueError, match="norms must be plain or diagonal"):
        Foof(norms="full")  # pyright: ignore[reportArgumentType]
