"""The scratch network of several clients at once: its leaves are theta_1..theta_C, stacked along a leading axis.

The network itself is the one in which clients train alone; `torch.func` calls it with the stacked leaves, or
`LinearStack` where that can. Optimizers and gradient transforms see leaves [C, ...] with gradients [C, ...] and need
not know.

Clients that have run out of batches: they stand last (fewest steps), so those who still train are the first m. Who
leaves is read out at once, and put back when everybody is through; whatever the optimizer does to that part of a leaf
in the meantime (weight decay, momentum) is nobody's result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from fedpm_lightning.client.local_loop import LocalResult, Observed
from fedpm_lightning.client.local_model import LocalModel, fresh_autocast, no_autocast
from fedpm_lightning.curvature.factors.unequal_batches import UnequalRows
from fedpm_lightning.curvature.layers.layout import Layer
from fedpm_lightning.curvature.rows.batch_rows import Rows
from fedpm_lightning.curvature.rows.hooks import collect_input_rows
from fedpm_lightning.types import Batch, Params, clone_params


class StackedModel(LocalModel):
    """C copies of the leaves around one network.

    Args:
        single: The scratch network of clients that train alone, whose modules this one uses.
        clients: C.

    Attributes:
        params: The trainable leaves [C, ...].
    """

    def __init__(self, single: LocalModel, clients: int) -> None:
        # Not LocalModel's: nothing is copied but the leaves.
        self.net, self.objective, self.layers = single.net, single.objective, single.layers
        self.module_states, self.linear = single.module_states, single.linear
        self.clients = clients
        self.params = {
            name: p.detach().new_empty(clients, *p.shape).requires_grad_() for name, p in single.params.items()
        }
        self._general = vmap(lambda leaves, x: functional_call(self.net, leaves, (x,)))
        self._batch_weights: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}
        self._reset()

    def _reset(self) -> None:
        self._sizes: list[int] = [0] * self.clients  # of the batch that comes next, for the clients that have one
        self._finished: list[tuple[int, Params]] = []  # from which client on, and the leaves of those who left there
        self._unequal = False  # whether any batch so far was uneven, or somebody has left
        self._steps, self._seen = [0] * self.clients, [0] * self.clients
        self._losses = torch.zeros(self.clients, dtype=torch.float64, device=self.device)

    def load(self, params: Params, buffers: Params) -> None:
        """Copy theta into every client's leaves."""
        super().load(params, buffers)
        self._reset()

    def set_batch_sizes(self, sizes: Sequence[int]) -> None:
        """Set how many samples of the next batch count, for each of the first m clients; the others have finished."""
        self._save_finished(len(sizes))
        self._sizes = list(sizes)
        for client, size in enumerate(sizes):
            self._steps[client] += 1
            self._seen[client] += size

    def finish(self) -> list[LocalResult]:
        """Restore the leaves of clients that finished early; return each client's steps and loss."""
        with torch.no_grad():
            for first, params in self._finished:
                for name, p in self.params.items():
                    p[first : first + len(params[name])].copy_(params[name])
        losses = zip(self._steps, self._losses.tolist(), self._seen, strict=True)
        results = [LocalResult(steps, loss / max(seen, 1)) for steps, loss, seen in losses]
        self._reset()
        return results

    def _save_finished(self, m: int) -> None:
        """Save the results of the clients after the first m."""
        if m < len(self._sizes):
            self._finished.append((m, clone_params({name: p[m : len(self._sizes)] for name, p in self.params.items()})))

    def gradient(
        self, batch: Batch, observe: Sequence[Layer] = (), errors: bool = False
    ) -> tuple[Tensor, Mapping[str, Observed]]:
        """Put the gradient of each client's loss into `.grad`; finished clients get zeros.

        Args:
            batch: Inputs [m, B, ...] and targets [m, B, ...] of the clients that `set_batch_sizes` named.
            observe: Layers whose input rows are wanted.
            errors: Without effect: vmap shows nobody the gradients of outputs.

        Returns:
            (the sum of the losses [], detached; layer name -> input rows [m, ...])
        """
        inputs, targets = batch
        self.zero_grad()
        m, even = len(targets), min(self._sizes) == targets.shape[1]
        self._unequal |= m < self.clients or not even
        leaves = self.params if m == self.clients else {name: p[:m] for name, p in self.params.items()}

        def forward(leaves: Params, x: Tensor) -> tuple[Tensor, dict[str, Rows]]:
            with collect_input_rows(self.net, observe, reduce=even) as rows:
                logits: Tensor = functional_call(self.net, leaves, (x,))
            return logits, dict(rows)

        with fresh_autocast(inputs.device):
            logits, rows = vmap(forward)(leaves, inputs) if observe else (self._logits(leaves, inputs), {})
            weights, sizes = self._weights(targets)
            losses = self.objective.per_client(logits, targets, weights, leaves)
        with no_autocast(inputs.device):
            losses.sum().backward()
        self._losses[:m] += losses.detach().double() * sizes
        if not self._unequal:
            return losses.detach().sum(), rows
        images = {layer.name: layer.images for layer in observe}
        return losses.detach().sum(), {k: self._unequal_rows(X, targets.shape[1], images[k]) for k, X in rows.items()}

    def _unequal_rows(self, rows: Rows, batch: int, images: int | None) -> UnequalRows:
        """Return a layer's rows with the number of samples that count, of those that it looks at."""
        most = batch if images is None else min(batch, images)
        return UnequalRows(rows, [min(size, most) for size in self._sizes], most)

    def _logits(self, leaves: Params, inputs: Tensor) -> Tensor:
        """Return the outputs [m, B, ...], by the quicker way where it agrees with the general one."""
        if self.linear is None or not self.linear.agrees(self._general, leaves, inputs):
            return self._general(leaves, inputs)
        return self.linear(leaves, inputs)

    def _weights(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return 1/B_i for the samples that count and 0 for the others, [m, B], and B_i [m]; worked out once each."""
        B, dtype = targets.shape[1], next(iter(self.params.values())).dtype
        key = (B, *self._sizes)
        if key not in self._batch_weights:
            sizes = torch.tensor(self._sizes, device=targets.device)
            count = torch.arange(B, device=targets.device) < sizes[:, None]
            self._batch_weights = {key: (count / sizes[:, None].to(dtype), sizes)}
        return self._batch_weights[key]

    def float_buffers(self) -> Params:
        """Return the floating-point buffers, the same for every client, [C, ...]."""
        return {name: b.expand(self.clients, *b.shape) for name, b in super().float_buffers().items()}
