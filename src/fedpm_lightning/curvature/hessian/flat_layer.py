"""All trainable parameters as one vector, seen as one "layer" by optimizers and by the server's mixing.

    FlatLayer      theta as one row, W [*, 1, d]: P is the Hessian [*, d, d]
    DiagonalLayer  theta as d independent numbers, W [*, d, 1, 1]: P is a diagonal [*, d, 1, 1]

Both have what `layers.Layer` has for the server (name, params, matrix, unpack); * is an optional client axis C.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from typing_extensions import override

from fedpm_lightning.types import Params


@dataclass(frozen=True)
class FlatLayer:
    """The leaves of a network, flattened in its own order.

    Attributes:
        shapes: Parameter name -> shape of one client's tensor.
        name: What messages call it.
    """

    shapes: Mapping[str, torch.Size]
    name: str = "theta"

    @classmethod
    def of(cls, params: Mapping[str, Tensor]) -> FlatLayer:
        """Return the layer of these parameters (one client's)."""
        return cls({name: p.shape for name, p in params.items()})

    @classmethod
    def of_net(cls, net: nn.Module) -> FlatLayer:
        """Return the layer of a network's trainable parameters."""
        return cls.of({name: p for name, p in net.named_parameters() if p.requires_grad})

    @property
    def params(self) -> list[str]:
        """The names of the parameters."""
        return list(self.shapes)

    @property
    def d(self) -> int:
        """The number of parameters."""
        return sum(shape.numel() for shape in self.shapes.values())

    def vector(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Lay parameters or gradients out as [*, d].

        Raises:
            KeyError: If a parameter is missing.
        """
        parts = [
            tensors[name].flatten(tensors[name].dim() - len(shape)) if shape else tensors[name].unsqueeze(-1)
            for name, shape in self.shapes.items()
        ]
        return torch.cat(parts, dim=-1)

    def split(self, vector: Tensor) -> Params:
        """Undo `vector` in the dtype of `vector`; differentiable."""
        parts = vector.split([shape.numel() for shape in self.shapes.values()], dim=-1)
        named = zip(self.shapes.items(), parts, strict=True)
        return {name: part.reshape((*part.shape[:-1], *shape)) for (name, shape), part in named}

    def matrix(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Lay parameters or gradients out as W [*, 1, d]."""
        return self.vector(tensors).unsqueeze(-2)

    def unpack(self, matrix: Tensor, like: Mapping[str, Tensor]) -> Params:
        """Undo `matrix`, in the dtypes of `like`."""
        return {name: part.to(like[name].dtype) for name, part in self.split(matrix.squeeze(-2)).items()}


@dataclass(frozen=True)
class DiagonalLayer(FlatLayer):
    """The same leaves, each number with a preconditioner of its own."""

    @override
    def matrix(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Lay parameters or gradients out as W [*, d, 1, 1]."""
        return self.vector(tensors)[..., None, None]

    @override
    def unpack(self, matrix: Tensor, like: Mapping[str, Tensor]) -> Params:
        """Undo `matrix`, in the dtypes of `like`."""
        return {name: part.to(like[name].dtype) for name, part in self.split(matrix[..., 0, 0]).items()}
