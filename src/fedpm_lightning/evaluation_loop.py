"""Lightning's validation loop without its bookkeeping, where nobody of another house listens to it.

After every round the global model is evaluated. Lightning's loop around that (fetchers, hooks of every callback and
batch, its collection of logged results) costs more than a small network's evaluation; here the batches come straight
from the data, and only hooks that somebody has written are called. A callback or module from elsewhere that implements
a hook of validation gets Lightning's own loop, with all that its hooks may expect there (`self.log`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeAlias, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loops.evaluation_loop import _EvaluationLoop  # pyright: ignore[reportPrivateUsage]
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.trainer.states import RunningStage, TrainerFn

from fedpm_lightning.callbacks.base import data_of, federation_of

HOOKS = tuple(
    f"on_validation_{moment}" for moment in ("start", "epoch_start", "batch_start", "batch_end", "epoch_end", "end")
)

Calls: TypeAlias = dict[str, list[Callable[..., None]]]


class RoundEvaluation(_EvaluationLoop):
    """The evaluation that follows a round."""

    _plain: bool | None = None
    _calls: Calls

    def run(self) -> list[Any]:
        """Evaluate the splits; return what Lightning's loop would have logged: nothing, a round's row has it all."""
        trainer = self.trainer
        if self._plain is None:
            self._plain = is_plain(trainer)
            self._calls = {name: [getattr(one, name) for one in writers(trainer, name)] for name in HOOKS}
        if trainer.sanity_checking or not self._plain:
            return super().run()
        self.setup_data()
        if self.skip:
            return []
        self.reset()
        module = trainer.lightning_module
        self._module_mode.capture(module)
        module.eval()
        with torch.no_grad(), trainer.precision_plugin.val_step_context():
            self.evaluate(trainer, module)
        self._module_mode.restore(module)
        self._has_run, cast(Any, trainer)._last_val_time = True, time.monotonic()
        return []

    def evaluate(self, trainer: Trainer, module: LightningModule) -> None:
        """Go over the batches of all splits, and call those who listen."""
        federation, data, calls = federation_of(module), data_of(trainer), self._calls
        _tell([*calls["on_validation_start"], *calls["on_validation_epoch_start"]], trainer, module)
        seen = 0
        for number, (split, batches) in enumerate(zip(data.eval_names, data.val_dataloader(), strict=True)):
            for place, batch in enumerate(batches):
                _tell(calls["on_validation_batch_start"], trainer, module, batch, place, number)
                classes = federation.evaluate_batch(split, batch)
                _tell(calls["on_validation_batch_end"], trainer, module, classes, batch, place, number)
                seen += 1
        self.batch_progress.increment_by(seen, True)
        _tell(calls["on_validation_epoch_end"], trainer, module)
        module.on_validation_epoch_end()
        _tell(calls["on_validation_end"], trainer, module)


def install(trainer: Trainer) -> None:
    """Put it in the place of Lightning's loop, before a checkpoint is read into the loops."""
    rounds = trainer.fit_loop.epoch_loop
    if type(rounds.val_loop) is _EvaluationLoop:
        ours = RoundEvaluation(trainer, TrainerFn.FITTING, RunningStage.VALIDATING, verbose=False, inference_mode=False)
        cast(Any, ours)._data_source = cast(Any, rounds.val_loop)._data_source
        rounds.val_loop = ours


def is_plain(trainer: Trainer) -> bool:
    """Tell whether every batch is evaluated, nobody takes Lightning's times, and all who listen are of this package."""
    listeners = [writers(trainer, name) for name in HOOKS]
    names = (*HOOKS, "validation_step", "on_validation_model_eval", "on_validation_model_train")
    written = [getattr(type(trainer.lightning_module), name) for name in names]
    written += [getattr(type(one), name) for name, found in zip(HOOKS, listeners, strict=True) for one in found]
    return (
        repr(trainer.limit_val_batches) == "1.0"  # the share; the integer 1 is one batch of each split
        and isinstance(cast(Any, trainer).profiler, PassThroughProfiler)
        and all(_is_known(function) for function in written)
    )


def writers(trainer: Trainer, name: str) -> list[Callback]:
    """Return the callbacks that implement a hook."""
    base = getattr(Callback, name)
    return [one for one in cast("list[Callback]", trainer.callbacks) if getattr(type(one), name) is not base]  # pyright: ignore[reportAttributeAccessIssue]


def _is_known(function: Callable[..., Any]) -> bool:
    """Tell whether a hook is of this package, or one that Lightning leaves empty."""
    return function.__module__.startswith("fedpm_lightning.") or function.__module__ == "lightning.pytorch.core.hooks"


def _tell(calls: list[Callable[..., None]], *arguments: Any) -> None:
    for call in calls:
        call(*arguments)
