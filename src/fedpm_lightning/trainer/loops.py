"""Lightning's loops around a round, without their bookkeeping where nothing needs it.

A round is one training batch, and the global model is evaluated after it. What Lightning does around both (fetchers,
hooks of every callback and batch, its collection of logged results) costs more than a small network's round; here only
hooks that are implemented are called. A callback or module from elsewhere that implements a hook of batches or
validation gets Lightning's own loop, with all that its hooks may expect there (`self.log`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loops.evaluation_loop import _EvaluationLoop  # pyright: ignore[reportPrivateUsage]
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop  # pyright: ignore[reportPrivateUsage]
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.trainer.states import RunningStage, TrainerFn

from fedpm_lightning.callbacks.base import federation_of
from fedpm_lightning.callbacks.trainer_access import attributes_of, callbacks_of, data_of
from fedpm_lightning.trainer.start_check import is_whole

EVALUATION_HOOKS = tuple(
    f"on_validation_{moment}" for moment in ("start", "epoch_start", "batch_start", "batch_end", "epoch_end", "end")
)
ROUND_HOOKS = ("on_train_batch_start", "on_train_batch_end")

Calls: TypeAlias = dict[str, list[Callable[..., None]]]


class RoundEpoch(_TrainingEpochLoop):
    """The one batch of an epoch: a round."""

    _short: bool | None = None

    def advance(self, data_fetcher: Any) -> None:
        """Run the round, and count it."""
        trainer = self.trainer
        if self._short is None:
            nobody = not any(implementing_callbacks(trainer, name) for name in ROUND_HOOKS)
            self._short = (
                nobody and trainer.world_size == 1 and uses_known_hooks_only(trainer, (*ROUND_HOOKS, "training_step"))
            )
        if self.restarting or not self._short:
            super().advance(data_fetcher)
            return
        self.val_loop.restarting = False
        batch, _, _ = next(data_fetcher)
        self.batch_progress.is_last_batch = data_fetcher.done
        self.batch_progress.increment_ready()
        self.batch_progress.increment_started()
        connector = _untyped(trainer)._logger_connector
        connector.on_batch_start(batch)
        module, optimizer = _untyped(trainer.lightning_module), trainer.optimizers[0]
        module._current_fx_name = "training_step"  # where a hook of the round may log
        counting = optimizer.register_step_post_hook(self._count)
        try:
            with trainer.precision_plugin.train_step_context():
                module.run_round(batch, optimizer)
        finally:
            counting.remove()
        module._current_fx_name = None
        self.batch_progress.increment_processed()
        if _untyped(trainer)._results:  # a hook of the round has logged something
            connector.on_batch_end()
            connector.update_train_step_metrics()
        self.batch_progress.increment_completed()

    def _count(self, *_: object) -> None:
        """Count the server's step, which is Lightning's `global_step`."""
        steps = self.manual_optimization.optim_step_progress
        steps.increment_ready()
        steps.increment_completed()


class RoundEvaluation(_EvaluationLoop):
    """The evaluation that follows a round."""

    _short: bool | None = None
    _calls: Calls

    def run(self) -> list[Mapping[str, float]]:
        """Evaluate the splits; return what Lightning's loop would have logged: nothing, a round's row has it all."""
        trainer = self.trainer
        if self._short is None:
            hooks = (*EVALUATION_HOOKS, "validation_step", "on_validation_model_eval", "on_validation_model_train")
            self._short = is_whole(trainer.limit_val_batches) and uses_known_hooks_only(trainer, hooks)
            self._calls = {
                name: [getattr(one, name) for one in implementing_callbacks(trainer, name)] for name in EVALUATION_HOOKS
            }
        if trainer.sanity_checking or self.restarting or not self._short:
            return super().run()
        self.setup_data()
        if self.skip:
            return []
        self.batch_progress.reset_on_run()
        module = trainer.lightning_module
        self._module_mode.capture(module)
        module.eval()
        with torch.no_grad(), trainer.precision_plugin.val_step_context():
            self.evaluate(trainer, module)
        self._module_mode.restore(module)
        self._has_run, _untyped(trainer)._last_val_time = True, time.monotonic()
        return []

    def evaluate(self, trainer: Trainer, module: LightningModule) -> None:
        """Evaluate the batches of all splits, and call the hooks."""
        federation, data, calls = federation_of(module), data_of(trainer), self._calls
        _call_all([*calls["on_validation_start"], *calls["on_validation_epoch_start"]], trainer, module)
        seen = 0
        for number, (split, batches) in enumerate(zip(data.eval_names, data.val_dataloader(), strict=True)):
            for place, batch in enumerate(batches):
                _call_all(calls["on_validation_batch_start"], trainer, module, batch, place, number)
                classes = federation.evaluate_batch(split, batch)
                _call_all(calls["on_validation_batch_end"], trainer, module, classes, batch, place, number)
                seen += 1
        self.batch_progress.increment_by(seen, True)
        _call_all(calls["on_validation_epoch_end"], trainer, module)
        module.on_validation_epoch_end()
        _call_all(calls["on_validation_end"], trainer, module)


def install_loops(trainer: Trainer) -> None:
    """Replace Lightning's loops, before a checkpoint is loaded into them."""
    fit, theirs = _untyped(trainer.fit_loop), _untyped(trainer.fit_loop.epoch_loop)
    if type(theirs) is _TrainingEpochLoop and type(theirs.val_loop) is _EvaluationLoop:
        ours = RoundEpoch(trainer, theirs.min_steps, theirs.max_steps)
        ours.val_loop = RoundEvaluation(
            trainer, TrainerFn.FITTING, RunningStage.VALIDATING, verbose=False, inference_mode=False
        )
        vars(ours.val_loop)["_data_source"] = vars(theirs.val_loop)["_data_source"]
        fit.epoch_loop = ours


def uses_known_hooks_only(trainer: Trainer, hooks: Sequence[str]) -> bool:
    """Tell whether nobody takes Lightning's times, and all who implement one of the hooks are of this package."""
    implementations = [getattr(type(trainer.lightning_module), name) for name in hooks]
    for name in hooks:
        if hasattr(Callback, name):
            implementations += [getattr(type(one), name) for one in implementing_callbacks(trainer, name)]
    return isinstance(attributes_of(trainer).profiler, PassThroughProfiler) and all(map(_is_known, implementations))


def implementing_callbacks(trainer: Trainer, name: str) -> list[Callback]:
    """Return the callbacks that implement a hook."""
    base = getattr(Callback, name)
    return [one for one in callbacks_of(trainer) if getattr(type(one), name) is not base]


def _is_known(function: Callable[..., object]) -> bool:
    """Tell whether a hook is of this package, or one that Lightning leaves empty."""
    return function.__module__.startswith("fedpm_lightning.") or function.__module__ == "lightning.pytorch.core.hooks"


def _call_all(calls: list[Callable[..., None]], *arguments: object) -> None:
    for call in calls:
        call(*arguments)


def _untyped(value: object) -> Any:
    """Return a part of Lightning whose private attributes are used, which its types leave out."""
    return value
