"""The scratch network in which the clients of this process train, one after another.

One copy is made per run, never one per client: loading theta is a copy into existing memory. It is kept outside of the
LightningModule's attributes, where it would enter the state dict, `parameters()` and the model summary.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase  # pyright: ignore[reportPrivateUsage]

from fedpm_lightning.client.linear_stack import LinearStack
from fedpm_lightning.client.memory_format import to_channels_last, use_channels_last
from fedpm_lightning.client.objective import Objective
from fedpm_lightning.curvature.factors.full_pass import evaluating
from fedpm_lightning.curvature.factors.unequal_batches import Observed
from fedpm_lightning.curvature.layers.layout import Layer
from fedpm_lightning.curvature.layers.rules import find_layers
from fedpm_lightning.curvature.rows.hooks import collect_input_rows
from fedpm_lightning.curvature.rows.output_gradients import collect_errors, with_errors
from fedpm_lightning.types import Batch, Params, clone_params

CompileMode: TypeAlias = Literal["default", "reduce-overhead", "max-autotune"]


class LocalModel:
    """A network whose parameters clients train in place.

    Args:
        net: The global network; it is copied once and never touched.
        objective: The local loss f_i.
        channels_last: Whether images and convolutions lie channels-last in memory; None: where that is faster.
        compile: The mode of torch.compile for steps in which no layer is observed; None: never.

    Attributes:
        params: The trainable leaves (theta_i), name -> parameter.
        layers: The layers that FOOF knows.
        linear: How stacked clients go through the network without vmap; None where its layers are not all linear.
    """

    def __init__(
        self,
        net: nn.Module,
        objective: Objective,
        channels_last: bool | None = None,
        compile: CompileMode | None = None,
    ) -> None:
        self.net = copy.deepcopy(net).train()  # what `load` restores
        self.channels_last = use_channels_last(net, next(net.parameters()).device, channels_last)
        if self.channels_last:
            self.net.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        # Hooks that come after compilation would not run, without a word: a step that needs them calls the network.
        self._compiled = None if compile is None else torch.compile(self.net, mode=compile)
        self.objective = objective
        self.params: Params = {k: p for k, p in self.net.named_parameters() if p.requires_grad}
        self.module_states = [_ModuleState(name, module) for name, module in self.net.named_modules()]
        self.layers: list[Layer] = find_layers(self.net)
        self.linear = LinearStack.of(self.net, self.params)

    @property
    def device(self) -> torch.device:
        """The training device."""
        return next(iter(self.params.values())).device

    @property
    def buffers(self) -> Params:
        """The network's buffers as they are now: a forward pass may put others in their place."""
        return {name: buffer for state in self.module_states for name, buffer in state.buffers()}

    @torch.no_grad()
    def load(self, params: Params, buffers: Params) -> None:
        """Copy theta and the buffers in, forget what the last client left, and switch to training mode."""
        for state in self.module_states:
            state.restore()
        for name, leaf in self.params.items():
            leaf.copy_(params[name])
        if buffers:
            own = self.buffers
            for name, value in buffers.items():
                own[name].copy_(value)
        self.zero_grad()

    def freeze_statistics(self) -> None:
        """Let batch normalisation use its running statistics, and leave them as they are, while the rest trains."""
        for module in self.net.modules():
            if isinstance(module, _NormBase):
                module.eval()

    def zero_grad(self) -> None:
        """Drop every `.grad`."""
        for p in self.params.values():
            p.grad = None

    def gradient(
        self, batch: Batch, observe: Sequence[Layer] = (), errors: bool = False
    ) -> tuple[Tensor, Mapping[str, Observed]]:
        """Put the gradient of the loss on `batch` into `.grad`; return the loss and the inputs of `observe`.

        Args:
            batch: Inputs and targets.
            observe: Layers whose input rows are wanted.
            errors: Whether nothing will be added to the gradient, so that the rows may bring their errors.

        Returns:
            (loss [], detached; layer name -> its input rows, empty when nothing is observed)
        """
        inputs, targets = batch
        self.zero_grad()
        if not observe:
            loss = self._loss(self.net if self._compiled is None else self._compiled, inputs, targets)
            with no_autocast(inputs.device):
                loss.backward()
            return loss.detach(), {}
        with collect_errors(self.net, observe if errors and not self.objective.l2 else ()) as E:
            with collect_input_rows(self.net, observe) as rows:
                loss = self._loss(self.net, inputs, targets)
            with no_autocast(inputs.device):
                loss.backward()
        return loss.detach(), with_errors(rows, E)

    def _loss(self, net: Callable[[Tensor], Any], inputs: Tensor, targets: Tensor) -> Tensor:
        with fresh_autocast(inputs.device):
            return self.objective(net(self.in_memory_format(inputs)), targets, self.params)

    @torch.no_grad()
    def value(self, batch: Batch) -> float:
        """Return the objective on `batch` in evaluation mode (a line search); `.grad` stays as it is."""
        with evaluating(self.net), torch.autocast(batch[0].device.type, enabled=False):
            return float(self.objective(self.net(self.in_memory_format(batch[0])), batch[1], self.params))

    def in_memory_format(self, inputs: Tensor) -> Tensor:
        """Return the inputs in the order of memory that this network runs on."""
        return to_channels_last(inputs) if self.channels_last else inputs

    def gradients(self) -> Params:
        """Return the current `.grad` of each leaf as copies; a leaf without one gives zeros."""
        return {k: torch.zeros_like(p) if p.grad is None else p.grad.clone() for k, p in self.params.items()}

    def snapshot(self) -> Params:
        """Return a copy of theta_i."""
        return clone_params(self.params)

    def float_buffers(self) -> Params:
        """Return copies of the floating-point buffers; counters are never averaged."""
        return clone_params({k: b for k, b in self.buffers.items() if b.is_floating_point()})


class _ModuleState:
    """What a module holds beside its parameters when nobody has used it yet: buffers, and attributes of its own.

    A forward pass may assign them (a running value, a hidden state); the next client must not find them.
    """

    def __init__(self, prefix: str, module: nn.Module) -> None:
        self.prefix, self.module = f"{prefix}." if prefix else "", module
        self._live: dict[str, Tensor | None] = vars(module)["_buffers"]
        self._buffers = dict(self._live)
        self._names = frozenset(vars(module))
        self._others = {name: value for name, value in vars(module).items() if not name.startswith("_")}

    def buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the module's own buffers as they are now."""
        for name, buffer in self._live.items():
            if buffer is not None:
                yield self.prefix + name, buffer

    def restore(self) -> None:
        """Put back what was there, training mode included; tensors keep the values that were written into them."""
        self._live.clear()
        self._live.update(self._buffers)
        own = vars(self.module)
        if own.keys() != self._names:
            for name in [name for name in own.keys() - self._names if not name.startswith("_")]:
                del own[name]
        own.update(self._others)


def no_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context without autocast; one that costs nothing where autocast is off anyway."""
    kind = device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def fresh_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which autocast, where it is on, keeps no low-precision copies of weights."""
    # A whole round runs inside ONE autocast region of Lightning's. Its cache of low-precision weights is only cleared
    # when that region ends, so without this every local step after the first would see the weights of the first.
    kind = device.type
    if not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(kind, dtype=torch.get_autocast_dtype(kind), cache_enabled=False)
