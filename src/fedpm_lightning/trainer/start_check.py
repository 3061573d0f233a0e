"""Refuses trainer settings that a federated round cannot honour, in one line before anything runs."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from lightning.pytorch import Trainer

from fedpm_lightning.callbacks.base import FederatedCallback
from fedpm_lightning.callbacks.trainer_access import attributes_of, callbacks_of
from fedpm_lightning.round import Hooks

CALLBACKS = {
    "GradientAccumulationScheduler": "one batch is one round: use model.local_epochs or model.local_steps",
    "LearningRateFinder": "it trains without rounds: sweep model.method.lr (fedpm sweep)",
    "BatchSizeFinder": "it trains without rounds: set data.batch_size",
    "StochasticWeightAveraging": "theta belongs to model.server_optimizer, which it would bypass",
}
"""Lightning's callbacks that cannot work here, and why or what to do instead."""


ALL_SAMPLES = "figures are of all samples of a split: use data.limit_test or data.val_fraction"


def is_whole(limit: float) -> bool:
    """Whether one of Lightning's limit_*_batches leaves a split whole: the share 1.0; the integer 1 is one batch."""
    return repr(limit) == "1.0"


def check_trainer(trainer: Trainer) -> None:
    """Check the trainer's settings and callbacks.

    Raises:
        ValueError: Naming the setting and the way out.
    """
    of = attributes_of(trainer)
    asked = {
        "overfit_batches": (of.overfit_batches, of.overfit_batches != 0, "use data.limit_train"),
        "limit_train_batches": (of.limit_train_batches, of.limit_train_batches != 1, "use data.limit_train"),
        "limit_val_batches": (val := of.limit_val_batches, not is_whole(val) and val != 0, ALL_SAMPLES),
        "limit_test_batches": (of.limit_test_batches, not is_whole(of.limit_test_batches), ALL_SAMPLES),
        "val_check_interval": (
            of.val_check_interval,
            of.val_check_interval not in (None, 1),
            "use trainer.check_val_every_n_epoch",
        ),
        "reload_dataloaders_every_n_epochs": (
            of.reload_dataloaders_every_n_epochs,
            of.reload_dataloaders_every_n_epochs != 0,
            "the data are loaded once: leave it out",
        ),
        "max_steps": (trainer.max_steps, trainer.max_steps not in (-1, None), "a step is a round: use rounds"),
    }
    for name, (value, wrong, instead) in asked.items():
        if wrong and not of.fast_dev_run:
            raise ValueError(f"trainer.{name} {value} has no meaning where one batch is one round: {instead}")
    if getattr(trainer.precision_plugin, "scaler", None) is not None:
        raise ValueError(
            "trainer.precision 16-mixed scales gradients, which local steps do not: use bf16-mixed or 32-true"
        )
    for callback in callbacks_of(trainer):
        unused_hooks = [name for name in vars(Hooks) if name.startswith("on_") and hasattr(callback, name)]
        if unused_hooks and not isinstance(callback, Hooks):
            raise ValueError(
                f"{type(callback).__name__}.{unused_hooks[0]} is never called: derive it from FederatedCallback"
            )
        for kind in type(callback).__mro__:
            if kind.__module__.startswith("lightning.") and kind.__name__ in CALLBACKS:
                raise ValueError(f"trainer.callbacks {kind.__name__} cannot work here: {CALLBACKS[kind.__name__]}")


def check_monitors(trainer: Trainer, splits: Iterable[str], language: bool = False) -> None:
    """Check that what callbacks monitor (EarlyStopping, ModelCheckpoint) is recorded in a round.

    Args:
        trainer: The trainer.
        splits: The splits that are evaluated.
        language: Whether perplexity is among their figures.

    Raises:
        ValueError: Naming the key and those that there are.
    """
    present = callbacks_of(trainer)
    federated = [callback for callback in present if isinstance(callback, FederatedCallback)]
    if any(callback.records is None for callback in federated):
        return  # a custom callback that does not declare what it records
    evaluated = [f"{split}/{kind}" for split in splits for kind in ("acc", "loss", *["perplexity"] * language)]
    known = [*evaluated, *(name for callback in federated for name in callback.records or ())]
    for callback in present:
        key = getattr(callback, "monitor", None)
        if isinstance(key, str) and key not in known and not key.startswith(tuple(n for n in known if n.endswith("/"))):
            near = difflib.get_close_matches(key, known, 1)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(
                f"{type(callback).__name__} monitors {key}, which no round of this run records{meant}\n"
                f"There are {', '.join(known)}"
            )
