"""How the tensors of a layer with a FOOF factor become one matrix W (out x d).

Layout, used by everything in curvature/, preconditioners/ and server/:

    Linear                W [*, out, d]                    d = in (+ 1)
    convolution           W [*, out, d]                    d = in * kernel (+ 1)
    convolution, groups   W [*, groups, out/groups, d]     d = in/groups * kernel (+ 1)
    attention, packed     W [*, 3, width, d]               q, k, v read different inputs; else W [*, 3 width, d]
    Embedding             W [*, tokens, width, 1]          A is a diagonal over tokens
    norm layer            W [*, 2 features, 1, 1]          A is a diagonal over scales, then shifts

The + 1 is the bias, the LAST column, met by a constant 1 in the input rows; * is an optional client axis C. A diagonal
is a stack of matrices of size 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor
from typing_extensions import override

from fedpm_lightning.curvature.layers.patches import Patches
from fedpm_lightning.types import Params

INPUT = ((0, "input"),)
"""Place and name of the argument of `forward` that most layers read."""


@dataclass(frozen=True)
class Layer:
    """One layer with a FOOF factor.

    Attributes:
        name: The module's name inside the network.
        weight: The weight's parameter name.
        bias: The bias's parameter name, or None where there is none to train.
        out: Rows of W over all groups.
        d: Columns of W, the bias column included.
        groups: Groups of a convolution, projections of an attention layer; 1 otherwise.
        patches: The patches of a convolution; None for other layers.
        images: How many images of a batch a convolution's rows are taken from; None: all.
        shared_with: The other modules that use the same weight.
        module: The name of the module that is called, where that is another one.
        reads: Place and name of the arguments that it multiplies W with; one for each group where there are several.
    """

    name: str
    weight: str
    bias: str | None
    out: int
    d: int
    groups: int = 1
    patches: Patches | None = None
    images: int | None = None
    shared_with: tuple[str, ...] = ()
    module: str | None = None
    reads: tuple[tuple[int, str], ...] = INPUT

    diagonal: ClassVar[bool] = False
    """Whether A is a diagonal."""

    rows_suffice: ClassVar[bool] = True
    """Whether A, once it rests on enough rows, holds what later batches bring."""

    @property
    def modules(self) -> list[str]:
        """The names of the modules whose inputs make up A."""
        return [self.name if self.module is None else self.module, *self.shared_with]

    @property
    def has_output(self) -> bool:
        """Whether what its module puts out is W x, row by row."""
        return self.reads == INPUT and not self.diagonal

    @property
    def params(self) -> list[str]:
        """The names of the parameters that make up W."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of W without its last axis: (out,), or (groups, out/groups)."""
        return (self.out,) if self.groups == 1 else (self.groups, self.out // self.groups)

    @property
    def size(self) -> str:
        """The size of A, as it is printed."""
        return f"d = {self.d}"

    def without_bias(self) -> Self:
        """Return the same layer with a bias that is none of its business, if it had one."""
        return self if self.bias is None else replace(self, bias=None, d=self.d - 1)

    def matrix(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Lay the weight and the bias of `tensors` (parameters or gradients) out as one matrix [*, out, d].

        Raises:
            KeyError: If a parameter of the layer is missing.
        """
        weight = tensors[self.weight]
        lead = weight.shape[: weight.dim() - 2 - (0 if self.patches is None else self.patches.axes)]
        W = weight.reshape(*lead, *self.row_shape, -1)
        if self.bias is None:
            return W
        return torch.cat([W, tensors[self.bias].reshape(*lead, *self.row_shape, 1)], dim=-1)

    def unpack(self, matrix: Tensor, like: Mapping[str, Tensor]) -> Params:
        """Undo `matrix`: return the layer's tensors by name, with the shapes and dtypes of `like`."""
        return self._named([matrix] if self.bias is None else [matrix[..., :-1], matrix[..., -1]], like)

    def _named(self, parts: list[Tensor], like: Mapping[str, Tensor]) -> Params:
        """Return weight and bias as they are in `like`."""
        return {
            name: part.reshape(like[name].shape).to(like[name].dtype)
            for name, part in zip(self.params, parts, strict=True)
        }


@dataclass(frozen=True)
class EmbeddingLayer(Layer):
    """An Embedding: a Linear layer of one-hot rows, whose A is the diagonal of the tokens' frequencies.

    Attributes:
        padding: The token whose row does not train (`padding_idx`); None: all do.
    """

    padding: int | None = None

    diagonal: ClassVar[bool] = True
    rows_suffice: ClassVar[bool] = False  # the next batch has tokens that those so far had not

    @property
    @override
    def size(self) -> str:
        return f"diagonal of {self.groups}"

    @override
    def matrix(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return the weight as [*, tokens, width, 1]."""
        return tensors[self.weight].unsqueeze(-1)

    @override
    def unpack(self, matrix: Tensor, like: Mapping[str, Tensor]) -> Params:
        """Undo `matrix`."""
        return self._named([matrix], like)


@dataclass(frozen=True)
class NormLayer(Layer):
    """The scale and shift of a norm layer: each a number of its own, W [*, 2 features, 1, 1].

    Attributes:
        axes: Dimensions of the weight.
    """

    axes: int = 1

    diagonal: ClassVar[bool] = True

    @property
    @override
    def size(self) -> str:
        return f"diagonal of {self.groups}"

    @override
    def without_bias(self) -> Self:
        """Return the scales alone."""
        half = self.groups // 2
        return self if self.bias is None else replace(self, bias=None, groups=half, out=half)

    @override
    def matrix(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return the scales, then the shifts, as [*, features (and again), 1, 1]."""
        parts = [tensors[name].flatten(tensors[name].dim() - self.axes) for name in self.params]
        return torch.cat(parts, dim=-1)[..., None, None]

    @override
    def unpack(self, matrix: Tensor, like: Mapping[str, Tensor]) -> Params:
        """Undo `matrix`."""
        return self._named(list(matrix[..., 0, 0].chunk(len(self.params), dim=-1)), like)
