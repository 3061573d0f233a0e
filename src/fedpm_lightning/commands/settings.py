"""The settings of a run: checks that belong to no single class, and what is known before anything is built."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedpm_lightning.checks import is_list
from fedpm_lightning.configuration import ConfigurationError
from fedpm_lightning.configuration.compose import Composition
from fedpm_lightning.configuration.experiment_keys import EXPERIMENT_KEYS, LIGHTNING_KEYS
from fedpm_lightning.configuration.parser import check_nulls
from fedpm_lightning.data.federated import FederatedData
from fedpm_lightning.data.sources import has_test_part, is_language
from fedpm_lightning.data.sources.cache import data_root
from fedpm_lightning.round.federation import Federation

if TYPE_CHECKING:
    from jsonargparse import Namespace


def check_values(settings: Namespace, composed: Composition) -> None:
    """Check the values that no class checks in its constructor.

    Raises:
        ConfigurationError: If a value is null that takes no null: it would escape every range check.
        ValueError: If a value is out of range.
    """
    for key, own in (EXPERIMENT_KEYS | {"seed_everything": LIGHTNING_KEYS["seed_everything"]}).items():
        if settings.get(key) is None and not own.nullable:
            raise ConfigurationError(f"{composed.origin(key)}: {key} is empty (null): give a value or leave it out")
    check_nulls(settings, {"model": Federation, "data": FederatedData}, composed)
    steps = settings.trainer.num_sanity_val_steps
    if steps not in (-1, 0):
        raise ValueError(f"trainer.num_sanity_val_steps must be -1 (evaluate theta_0 on all samples) or 0, got {steps}")
    if settings.rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {settings.rounds}")
    if settings.checkpoint_every < 1:
        raise ValueError(f"checkpoint_every must be at least 1 round, got {settings.checkpoint_every}")


def measured(settings: Namespace) -> list[str]:
    """Return the figures that a run of this configuration measures every round, without those of diagnostics."""
    data, callbacks = settings.data, as_list(settings.trainer.callbacks)
    root, splits = data_root(data.root), ["train"] + ["val"] * bool(data.val_fraction)
    if has_test_part(data.name, data.source, root):
        splits.append("test")
    keys = [
        f"{split}/{figure}" for split in splits for figure in ("loss", "acc") if (split, figure) != ("train", "acc")
    ]
    if is_language(data.name, data.source, root):
        keys += [f"{split}/perplexity" for split in splits if split != "train"]
    if any(callback.class_path.endswith(".Optimum") for callback in callbacks):
        keys += ["opt/gap", "opt/distance", "opt/grad_norm"]
    return [*keys, "clients/returned", "clients/dropped", "comm/up_bytes", "comm/down_bytes",
            "time/round_s", "time/eval_s", "time/total_s"]  # fmt: skip


def default_label(model: Namespace) -> str:
    """Name a method in tables: by its class, with the server optimizer's where one was chosen beside it."""
    names = [spec.class_path.rsplit(".", 1)[-1] for spec in (model.method, model.server_optimizer) if spec is not None]
    return " + ".join(names)


def as_list(value: object) -> list[Any]:
    """Return a value as a list: none for null, itself if it is one."""
    if value is None:
        return []
    return value if is_list(value) else [value]
