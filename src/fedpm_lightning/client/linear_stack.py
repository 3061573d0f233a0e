"""Stacked clients through a network whose trainable leaves all belong to `nn.Linear`, without `torch.func.vmap`.

All samples of all clients go through the network as ONE batch [C B, ...], and each linear layer takes it apart again:
[C, B, d] times its clients' weights [C, out, d]. Everything else in the network treats samples one by one, so that it
need not know of clients. Where vmap takes such a layer it does the same two operations, so the bits are the same; what
is saved is vmap's own work, at each call several times that of a small layer.

Which networks qualify is chosen by the classes of their modules, and a class does not say how it is called: so the
first batch goes through both ways, at leaves that differ from client to client, and vmap stays where outputs differ.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from fedpm_lightning.types import Params

Forward = Callable[[Params, Tensor], Tensor]
"""(leaves [C, ...], inputs [C, B, ...]) -> outputs [C, B, ...]."""

APART = 0.1
"""Deviation of what is added to the leaves for the comparison."""

TOLERANCE = 1e-3
"""Largest difference between the two ways as a share of the largest output; sums in another order stay far below."""


class LinearStack:
    """A network that runs stacked clients as one batch.

    Args:
        net: The network.
        layers: Its linear layers by name.
    """

    def __init__(self, net: nn.Module, layers: dict[str, nn.Linear]) -> None:
        self.net = net
        self._layers = [(module, f"{name}." if name else "") for name, module in layers.items()]
        self._agrees: bool | None = None

    @classmethod
    def of(cls, net: nn.Module, leaves: Iterable[str]) -> LinearStack | None:
        """Return one if the trainable leaves are those of plain linear layers, and the network keeps nothing else."""
        layers = {name: cast(nn.Linear, module) for name, module in net.named_modules() if _is_plain(module)}
        own = {f"{name}.{p}" if name else p for name, module in layers.items() for p, _ in module.named_parameters()}
        kept = next(net.buffers(), None)  # a forward pass more, for the comparison, might change it
        return cls(net, layers) if own and own == set(leaves) and kept is None else None

    def __call__(self, leaves: Params, inputs: Tensor) -> Tensor:
        """Return the outputs [C, B, ...].

        Args:
            leaves: [C, ...], by name.
            inputs: [C, B, ...].

        Raises:
            ValueError: If a layer is given anything but one row a sample.
        """
        with self._stacked(leaves, inputs.shape[:2]):
            return self.net(inputs.flatten(0, 1)).unflatten(0, inputs.shape[:2])

    def agrees(self, general: Forward, leaves: Params, inputs: Tensor) -> bool:
        """Whether this way gives what the general one does; compared once, at the first batch.

        Args:
            general: The way that knows any network.
            leaves: As the clients have them; what is compared is near them.
            inputs: The batch.
        """
        if self._agrees is None:
            self._agrees = self._compare(general, leaves, inputs)
        return self._agrees

    @torch.no_grad()
    def _compare(self, general: Forward, leaves: Params, inputs: Tensor) -> bool:
        draws = torch.Generator().manual_seed(0)
        noise = {k: torch.randn(p.shape, generator=draws).to(p.device, p.dtype) for k, p in leaves.items()}
        apart = {k: p.detach() + APART * noise[k] for k, p in leaves.items()}
        try:
            own, theirs = self(apart, inputs), general(apart, inputs)
        except (RuntimeError, ValueError):  # one of the two cannot run this network
            return False
        if own.shape != theirs.shape:
            return False
        return bool((own - theirs).abs().max() <= TOLERANCE * theirs.abs().max())

    @contextmanager
    def _stacked(self, leaves: Params, shape: torch.Size) -> Generator[None]:
        """Let the layers multiply each client's samples by its own weights inside the block."""
        for module, prefix in self._layers:  # past nn.Module.__setattr__, which looks for parameters
            vars(module)["forward"] = partial(_linear, leaves[f"{prefix}weight"], leaves.get(f"{prefix}bias"), shape)
        try:
            yield
        finally:
            for module, _ in self._layers:
                del vars(module)["forward"]


def _linear(weight: Tensor, bias: Tensor | None, shape: torch.Size, x: Tensor) -> Tensor:
    """Return X W^T + b of each client, [C B, out]; `weight` is [C, out, d], x [C B, d]."""
    if x.dim() != 2 or len(x) != shape[0] * shape[1]:
        raise ValueError(
            f"a linear layer got {tuple(x.shape)}, not one row for each of {shape[0]} x {shape[1]} samples"
        )
    y = torch.bmm(x.view(*shape, -1), weight.mT)
    if bias is not None:
        y = y + bias.unsqueeze(1).to(y.dtype)  # not baddbmm, which rounds otherwise
    return y.flatten(0, 1)


def _is_plain(module: nn.Module) -> bool:
    """Whether a module is a linear layer, no subclass, which nobody watches."""
    return type(module) is nn.Linear and not (module._forward_hooks or module._forward_pre_hooks)  # pyright: ignore[reportPrivateUsage]
