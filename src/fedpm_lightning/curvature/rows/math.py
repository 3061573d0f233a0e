"""FOOF's input rows and second moments, as pure tensor maths (Benzing 2022, "Gradient Descent on Neurons").

Layout, for one layer with batch B and T shared positions (pixels, tokens; T = 1 without any), R = B T:

    x    the layer's input       Linear [B, ..., in]      convolution [B, in, (D, H,) W]
    X    its rows                [R, d]                   with groups [groups, R, d]
    A    their second moment     [d, d]                   with groups [groups, d, d]

    A = (1/n) sum_r x_r x_r^T,   n = R (`spatial: mean`) or, for a convolution, n = B (`spatial: sum`)

A is uncentred. A patch is ordered (channel, kh, kw), as in a flattened weight; the last entry of a row
is the constant 1 of the bias. Everything is float32 or wider, under autocast too: low precision has no
Cholesky and loses definiteness.
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from fedpm_lightning.curvature.layers.layout import Layer
from fedpm_lightning.curvature.layers.patches import Patches

Spatial: TypeAlias = Literal["mean", "sum"]


def full_precision(device: torch.device) -> torch.autocast:
    """Return a context in which autocast does not lower any precision."""
    return torch.autocast(device.type, enabled=False)


def widen(x: Tensor) -> Tensor:
    """Return `x` in float32 or, if it is wider already, in its own dtype."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def input_rows(x: Tensor, layer: Layer) -> Tensor:
    """Return the rows X of one layer's input: [R, d], or [groups, R, d].

    Args:
        x: The layer's input, one client's (under vmap the client axis is hidden).
        layer: Its description.
    """
    x, bias = widen(x), layer.bias is not None
    if layer.patches is not None:
        return patch_rows(x, layer.patches, layer.groups, bias)
    X = x.reshape(-1, x.shape[-1])
    return F.pad(X, (0, 1), value=1.0) if bias else X


def patch_rows(x: Tensor, patches: Patches, groups: int = 1, bias: bool = False) -> Tensor:
    """Cut a batch into the patches a convolution multiplies with.

    Args:
        x: [B, in, (D, H,) W], or one sample [in, (D, H,) W].
        patches: The convolution's geometry.
        groups: Its groups.
        bias: Whether to add the constant 1.

    Returns:
        X [B T, d], or [groups, B T, d]: a transposed view, because [d, B T] is the faster order to copy into.
    """
    axes = patches.axes
    x = x if has_samples(x, patches) else x.unsqueeze(0)
    if any(patches.pad):
        x = F.pad(x, patches.pad, mode=patches.pad_mode)
    for axis, reach in enumerate(patches.reach):
        x = x.unfold(2 + axis, reach, patches.stride[axis])[..., :: patches.dilation[axis]]
    # A view so far, [B, in, H', W', kh, kw]; the assignment below is the only copy.
    out, kernel = range(3, 3 + axes), range(3 + axes, 3 + 2 * axes)
    x = x.unflatten(1, (groups, -1)).permute(1, 2, *kernel, 0, *out)
    d, R = math.prod(x.shape[1 : 2 + axes]), math.prod(x.shape[2 + axes :])
    columns = x.new_ones(groups, d + int(bias), R)
    columns[:, :d].view(x.shape).copy_(x)
    return columns.mT if groups > 1 else columns[0].mT


def patch_gram(x: Tensor, patches: Patches, groups: int = 1, bias: bool = False) -> Tensor:
    """Return X^T X of `patch_rows` over two axes for a vertical stride of 1, exactly, without building the patches.

    A block of X^T X belongs to two kernel rows i <= j. It is a sum over output rows y of products of the input's lines
    y + i and y + j, and every such product serves all blocks with the same j - i: 60 products of lines instead of 150
    for a 5 x 5 kernel on 14 x 14, and a copy that is kh times smaller.

    Args:
        x: [B, in, H, W], or one image [in, H, W].
        patches: The convolution's geometry, with a vertical stride of 1.
        groups: Its groups.
        bias: Whether a row ends with the constant 1.

    Returns:
        [d, d], or [groups, d, d].
    """
    x = x if x.dim() == 4 else x.unsqueeze(0)
    if any(patches.pad):
        x = F.pad(x, patches.pad, mode=patches.pad_mode)
    (kh, kw), (dh, dw) = patches.kernel, patches.dilation
    x = x.unfold(3, dw * (kw - 1) + 1, patches.stride[1])[..., ::dw].unflatten(1, (groups, -1))
    c, H = x.shape[2], x.shape[3]
    T = H - dh * (kh - 1)
    lines = x.permute(1, 3, 2, 5, 0, 4).reshape(groups, H, c * kw, -1)  # from [B, groups, c, H, W', kw]
    blocks: dict[tuple[int, int], Tensor] = {}
    for apart in range(kh):
        lagged = lines[:, : H - apart * dh] @ lines[:, apart * dh :].mT
        for i in range(kh - apart):
            block = lagged[:, i * dh : i * dh + T].sum(1)
            blocks[i, i + apart], blocks[i + apart, i] = block, block.mT
    tiles = torch.stack([blocks[i, j] for i in range(kh) for j in range(kh)], 1).view(groups, kh, kh, c, kw, c, kw)
    products = tiles.permute(0, 3, 1, 4, 5, 2, 6).reshape(groups, c * kh * kw, -1)
    if bias:
        sums = lines.sum(-1)
        edge = torch.stack([sums[:, i * dh : i * dh + T].sum(1) for i in range(kh)], 1)
        edge = edge.view(groups, kh, c, kw).transpose(1, 2).reshape(groups, -1, 1)
        corner = edge.new_full((groups, 1, 1), lines.shape[-1] * T)
        products = torch.cat([torch.cat([products, edge], -1), torch.cat([edge.mT, corner], -1)], -2)
    return products if groups > 1 else products[0]


def num_positions(x: Tensor, patches: Patches) -> int:
    """Return R, the number of patches that `patch_rows` cuts: samples times output positions."""
    samples = x.shape[0] if has_samples(x, patches) else 1
    return samples * math.prod(patches.positions(x.shape[-patches.axes :]))


def has_samples(x: Tensor, patches: Patches) -> bool:
    """Whether a convolution's input is a batch, and not a single sample."""
    return x.dim() == patches.axes + 2


def num_samples(x: Tensor, layer: Layer) -> int:
    """Return the n of `spatial: sum`: the images of a convolution's input, the rows of a linear layer's."""
    if layer.patches is None:
        return x.numel() // x.shape[-1]
    return x.shape[0] if has_samples(x, layer.patches) else 1


def gram(X: Tensor) -> Tensor:
    """Return X^T X, [*, d, d]: the sum of outer products over the rows.

    With many rows only the blocks on and above the diagonal are multiplied: half the work in the limit.
    """
    R, d = X.shape[-2:]
    with full_precision(X.device):
        if d <= 512 or d > R:
            return X.mT @ X
        left, right = X[..., : d // 2], X[..., d // 2 :]
        strip = left.mT @ right
        upper, lower = torch.cat([gram(left), strip], dim=-1), torch.cat([strip.mT, gram(right)], dim=-1)
        return torch.cat([upper, lower], dim=-2)


BLOCK = 256
"""Rows of S that `add_gram` updates at once."""


def add_gram(S: Tensor, X: Tensor, weight: float) -> None:
    """Add weight * X^T X to the lower triangle of S [*, d, d] in place; what is above it is not to be read."""
    d = X.shape[-1]
    for start in range(0, d, BLOCK):
        stop = min(start + BLOCK, d)
        add_matmul(S[..., start:stop, :stop], X[..., start:stop].mT, X[..., :stop], weight)


def add_matmul(S: Tensor, left: Tensor, right: Tensor, weight: float) -> None:
    """Add weight * left @ right to S in place, without a second matrix of that size where S has two dimensions."""
    if S.dim() == 2:
        S.addmm_(left, right, alpha=weight)
    else:
        S.add_(left @ right, alpha=weight)


def mirrored(S: Tensor) -> Tensor:
    """Return the symmetric matrix [*, d, d] whose lower triangle S has."""
    return S.tril() + S.tril(-1).mT


def trace(A: Tensor) -> Tensor:
    """Return the trace of [*, d, d] as [*]."""
    return A.diagonal(dim1=-2, dim2=-1).sum(-1)


def symmetric_numbers(d: int) -> int:
    """Return how many numbers a symmetric d x d matrix needs on the network: its triangle."""
    return d * (d + 1) // 2
