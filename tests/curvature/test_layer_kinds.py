"""Every kind of layer against autodiff: A is the Gauss-Newton matrix of the layer's outputs, J^T J/n, J = dy/dtheta.

For a Linear layer that is X^T X/n once for each output, for an Embedding the frequency of each token once for each of
its numbers, for a norm layer a 2 x 2 matrix for each feature, of which FOOF takes the diagonal.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedpm_lightning.curvature.factors.full_pass import full_pass_factors
from fedpm_lightning.curvature.layers.rules import find_layers
from fedpm_lightning.curvature.layers.weight_uses import weight_uses
from fedpm_lightning.curvature.rows.hooks import collect_input_rows
from fedpm_lightning.preconditioners import Foof
from fedpm_lightning.preconditioners.foof_optimizer import FOOF

DELTA = 0.3
TOKENS = torch.tensor([[0, 3, 3, 5], [1, 0, 0, 5], [3, 3, 2, 0]])

LINEAR = {
    "linear": (nn.Linear(4, 3), (5, 2, 4)),
    "conv1d": (nn.Conv1d(3, 4, 3, stride=2, padding=1), (4, 3, 9)),
    "conv1d, groups": (nn.Conv1d(4, 4, 2, dilation=2, groups=2, bias=False), (4, 4, 7)),
    "conv1d, same": (nn.Conv1d(2, 3, 4, padding="same", padding_mode="circular"), (2, 2, 8)),
    "conv2d": (nn.Conv2d(2, 3, 2), (3, 2, 4, 5)),
    "conv3d": (nn.Conv3d(2, 3, (2, 3, 1), stride=(1, 2, 1), padding=(0, 1, 2)), (2, 2, 3, 4, 2)),
    "conv3d, groups": (nn.Conv3d(2, 4, 2, groups=2), (2, 2, 3, 3, 3)),
}
NORMS = {
    "layer norm": (nn.LayerNorm([2, 3]), (5, 4, 2, 3)),
    "layer norm, no shift": (nn.LayerNorm(4, bias=False), (5, 4)),
    "group norm": (nn.GroupNorm(2, 4), (5, 4, 3, 2)),
    "rms norm": (nn.RMSNorm(4), (3, 5, 4)),
    "batch norm": (nn.BatchNorm1d(4), (6, 4)),
    "batch norm 2d, evaluation": (nn.BatchNorm2d(3).eval(), (4, 3, 2, 2)),
}


def one_step(net: nn.Module, x: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor]:
    """Take a FOOF step with lr 1 along a random linear loss; return (g, theta before - theta after, y)."""
    foof = Foof(damping=DELTA, damping_mode="absolute", ema=0.0, norms="diagonal")
    params = dict(net.named_parameters())
    optimizer = FOOF(params, find_layers(net, norms=True), foof, lr=1.0)
    before = {name: p.detach().clone() for name, p in params.items()}
    with collect_input_rows(net, optimizer.observed_layers()) as X:
        y = net(x)
    (y * torch.randn(y.shape, dtype=y.dtype)).sum().backward()
    optimizer.update_curvature(X)
    optimizer.step()
    g = {name: p.grad for name, p in params.items() if p.grad is not None}
    return g, {name: before[name] - p.detach() for name, p in params.items()}, y.detach()


def gauss_newton(net: nn.Module, x: Tensor, n: int) -> Tensor:
    """Return J^T J/n over the parameters one after another, by autodiff."""
    y, params = net(x).flatten(), list(net.parameters())
    J = torch.stack([torch.cat([g.flatten() for g in torch.autograd.grad(o, params, retain_graph=True)]) for o in y])
    return J.mT @ J / n


def flat(tensors: dict[str, Tensor]) -> Tensor:
    return torch.cat([t.flatten() for t in tensors.values()])


@pytest.mark.parametrize("kind", LINEAR)
def test_the_step_of_linear_layers_solves_with_the_gauss_newton_matrix_of_their_outputs(kind: str) -> None:
    module, shape = LINEAR[kind]
    net, x = nn.Sequential(module).double(), torch.randn(shape, dtype=torch.float64)
    g, step, y = one_step(net, x)
    H = gauss_newton(net, x, y.numel() // module.weight.shape[0])
    expected = torch.linalg.solve(H + DELTA * torch.eye(len(H), dtype=H.dtype), flat(g))
    torch.testing.assert_close(flat(step), expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("kind", NORMS)
def test_the_step_of_norm_layers_divides_by_the_diagonal_of_it(kind: str) -> None:
    module, shape = NORMS[kind]
    net, x = nn.Sequential(module).double(), 2 + 3 * torch.randn(shape, dtype=torch.float64)
    if isinstance(module, nn.BatchNorm2d):
        net.load_state_dict({"0.running_mean": torch.full((3,), 1.5), "0.running_var": torch.full((3,), 4.0)}, False)
    g, step, y = one_step(net, x)
    H = gauss_newton(net, x, y.numel() // module.weight.numel())
    torch.testing.assert_close(flat(step), flat(g) / (H.diagonal() + DELTA), rtol=1e-11, atol=1e-12)


def test_the_step_of_an_embedding_divides_each_row_by_the_frequency_of_its_token() -> None:
    net = nn.Sequential(nn.Embedding(6, 3)).double()
    g, step, _ = one_step(net, TOKENS)
    H = gauss_newton(net, TOKENS, TOKENS.numel())
    expected = torch.linalg.solve(H + DELTA * torch.eye(18, dtype=H.dtype), flat(g))
    torch.testing.assert_close(flat(step), expected, rtol=1e-11, atol=1e-12)
    share = torch.tensor([4, 1, 1, 4, 0, 2], dtype=torch.float64)[:, None] / 12
    torch.testing.assert_close(step["0.weight"], g["0.weight"] / (share + DELTA))
    assert not step["0.weight"][4].any(), "an unseen token does not move"


def test_padding_does_not_train_and_has_no_frequency() -> None:
    net = nn.Sequential(nn.Embedding(6, 3, padding_idx=0)).double()
    g, step, _ = one_step(net, TOKENS)
    assert not step["0.weight"][0].any()
    torch.testing.assert_close(step["0.weight"][3], g["0.weight"][3] / (4 / 12 + DELTA))
    A = full_pass_factors(net, find_layers(net), [(TOKENS, TOKENS)])["0"]
    assert A.shape == (6, 1, 1) and A[0] == 0 and A.sum() == pytest.approx(8 / 12)


def test_batch_norm_leaves_nothing_beside_the_diagonal() -> None:
    net, x = nn.Sequential(nn.BatchNorm1d(4)).double(), torch.randn(6, 4, dtype=torch.float64)
    H = gauss_newton(net, x, 6)
    assert (H - torch.diag(H.diagonal())).abs().max() < 1e-15


@pytest.mark.parametrize(
    "embedding",
    [nn.Embedding(6, 3, max_norm=1.0), nn.Embedding(6, 3, sparse=True), nn.Embedding(6, 3, scale_grad_by_freq=True)],
)
def test_a_lookup_whose_gradient_is_another_is_plain(embedding: nn.Embedding) -> None:
    assert find_layers(nn.Sequential(embedding)) == []


def attention_inputs(module: nn.MultiheadAttention, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return what the output projection multiplies, [B, L, E], written out."""
    width, h = module.embed_dim, module.num_heads
    if "in_proj_weight" in dict(module.named_parameters()):
        weights = module.in_proj_weight.chunk(3)
    else:
        weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    biases = module.in_proj_bias.chunk(3)
    q, k, v = (
        (x @ W.mT + b).unflatten(-1, (h, -1)).transpose(1, 2)
        for x, W, b in zip((query, key, value), weights, biases, strict=True)
    )
    return ((q @ k.mT / math.sqrt(width // h)).softmax(-1) @ v).transpose(1, 2).flatten(2)


def moment(x: Tensor, bias: bool = True) -> Tensor:
    rows = nn.functional.pad(x.flatten(0, 1), (0, int(bias)), value=1.0)
    return rows.mT @ rows / len(rows)


class Attends(nn.Module):
    """Attention over x alone, or of x to another sequence."""

    def __init__(self, cross: bool = False, batch_first: bool = True, **sizes: Any) -> None:
        super().__init__()
        self.cross, self.batch_first = cross, batch_first
        self.attention = nn.MultiheadAttention(4, 2, batch_first=batch_first, **sizes)

    def inputs(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value [B, L or S, E]."""
        if not self.cross:
            return x, x, x
        kdim, vdim = self.attention.kdim, self.attention.vdim
        return x, x[:, 1:, :1].expand(-1, -1, kdim).cos(), x[:, 1:, :1].expand(-1, -1, vdim).sin()

    def forward(self, x: Tensor) -> Tensor:
        given = self.inputs(x)
        if self.batch_first:
            return self.attention(*given)[0]
        if not self.cross:
            x = x.transpose(0, 1)
            return self.attention(x, x, x)[0].transpose(0, 1)
        return self.attention(*(one.transpose(0, 1) for one in given), need_weights=False)[0].transpose(0, 1)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kind", ["self", "cross", "separate"])
def test_the_factors_of_attention_are_those_of_its_inputs(kind: str, batch_first: bool) -> None:
    net = Attends(kind != "self", batch_first, **({"kdim": 3, "vdim": 2} if kind == "separate" else {})).double()
    x = torch.randn(3, 5, 4, dtype=torch.float64)
    layers = find_layers(net, weight_uses(net, x))
    y, plain = net(x), dict(net.named_parameters())
    grads = torch.autograd.grad(y.square().sum(), list(plain.values()))
    with collect_input_rows(net, layers) as X:
        seen = net(x)
    torch.testing.assert_close(seen, y, rtol=1e-13, atol=1e-14)
    again = torch.autograd.grad(seen.square().sum(), list(plain.values()))
    torch.testing.assert_close(again, grads, rtol=1e-12, atol=1e-13)
    assert [name for name, _ in net.named_parameters()] == list(plain), "put back in the same place"

    query, key, value = net.inputs(x)
    A = {name: rows.covariance() for name, rows in X.items()}
    torch.testing.assert_close(
        A["attention.out_proj"], moment(attention_inputs(net.attention, query, key, value)), rtol=1e-12, atol=1e-13
    )
    if kind == "self":
        torch.testing.assert_close(A["attention.in_proj"], moment(x))
    elif kind == "cross":
        torch.testing.assert_close(A["attention.in_proj"], torch.stack([moment(one) for one in (query, key, value)]))
    else:
        for name, one in zip("qkv", (query, key, value), strict=True):
            torch.testing.assert_close(A[f"attention.{name}_proj"], moment(one, bias=False))


def test_attention_in_evaluation_without_gradients_shows_the_same() -> None:
    """Torch has another function for it, which FOOF's pass over the whole local set meets."""
    net, x = Attends().double(), torch.randn(3, 5, 4, dtype=torch.float64)
    A = full_pass_factors(net, find_layers(net), [(x, x)])["attention.out_proj"]
    torch.testing.assert_close(A, moment(attention_inputs(net.attention, x, x, x)), rtol=1e-12, atol=1e-13)


def test_a_failed_pass_puts_the_projection_back() -> None:
    net = Attends()
    projection = net.attention.out_proj
    with pytest.raises(AssertionError, match="embedding dimension"), collect_input_rows(net, find_layers(net)):
        net(torch.randn(3, 5, 7))
    assert net.attention.out_proj is projection
    assert not vars(net.attention)["_forward_hooks"] and not vars(net.attention)["_forward_pre_hooks"]
