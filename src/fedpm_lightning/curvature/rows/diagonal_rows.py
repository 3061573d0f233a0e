"""The input rows of layers whose A is a diagonal: how often tokens occur, and how large normalised features are.

    Embedding    y = W^T e_t         rows e_t, so A = diag(share of each token t)
    norm layer   y = s x + b         for each feature j the rows (x_j, 1), so diag A = (mean x_j^2, 1)

One row stands for one sample here: X [d, B, 1] holds the roots of its sums of squares, so that samples can be left out.

A norm layer's exact factor would have a 2 x 2 matrix for each feature, with the mean of x_j beside the diagonal. That
is 0 for batch normalisation in training; for the others the diagonal is a choice.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]

from fedpm_lightning.curvature.layers.layout import EmbeddingLayer, NormLayer
from fedpm_lightning.curvature.rows.batch_rows import Rows
from fedpm_lightning.curvature.rows.math import full_precision, widen
from fedpm_lightning.stopwatch import timed


@timed("factors")
@torch.no_grad()
def token_rows(x: Tensor, layer: EmbeddingLayer, dtype: torch.dtype, reduce: bool = True) -> Rows:
    """Return the rows of a lookup of the tokens x [B, ...]; padding is none, but counts among the positions."""
    x = x.flatten(1) if x.dim() > 1 else x.reshape(-1, 1)
    counts = x.new_zeros(len(x), layer.groups, dtype=dtype).scatter_add(1, x, x.new_ones(x.shape, dtype=dtype))
    if layer.padding is not None:
        counts = counts * (torch.arange(layer.groups, device=x.device) != layer.padding)
    return _per_sample(counts, x.numel(), reduce)


@timed("factors")
@torch.no_grad()
def scale_rows(module: nn.Module, x: Tensor, layer: NormLayer, reduce: bool = True) -> Rows:
    """Return the rows of a norm layer's input x: its squared normalised features, and ones for the shift."""
    with full_precision(x.device):
        features = normalised(module, widen(x.detach()))  # [B, T, features]
    squares = features.square().sum(1)
    if layer.bias is not None:
        squares = torch.cat([squares, torch.full_like(squares, features.shape[1])], dim=-1)
    return _per_sample(squares, features.shape[0] * features.shape[1], reduce)


def normalised(module: nn.Module, x: Tensor) -> Tensor:
    """Return what a norm layer multiplies its scales with, [B, T, features]."""
    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        shape = module.normalized_shape
        own = F.layer_norm if isinstance(module, nn.LayerNorm) else F.rms_norm
        z = own(x, shape, eps=module.eps) if module.eps is not None else own(x, shape)
        return z.reshape(x.shape[0] if x.dim() > len(shape) else 1, -1, module.weight.numel())
    if isinstance(module, nn.GroupNorm):
        z = F.group_norm(x, module.num_groups, eps=module.eps)
    else:
        assert isinstance(module, _BatchNorm)
        of_batch = module.training or module.running_mean is None
        mean, variance = (None, None) if of_batch else (module.running_mean, module.running_var)
        z = F.batch_norm(x, mean, variance, training=of_batch, eps=module.eps)
    return z.unsqueeze(-1).flatten(2).mT


def _per_sample(squares: Tensor, rows: int, reduce: bool) -> Rows:
    """Return sums of squares [B, d] as rows; `rows` is how many they were summed over."""
    if reduce:
        return Rows(squares.sum(0)[:, None, None], rows, rows, True)
    return Rows(squares.mT.sqrt().unsqueeze(-1), rows, rows, False)
