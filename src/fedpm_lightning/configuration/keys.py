"""The table of keys: which name a class, which follow from another key, and what a change of each decides.

Resume, `fedpm compare`, sweeps and the docs read this table, so that they agree on what the same experiment is.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

from fedpm_lightning.checks import is_mapping


class Effect(Enum):
    """What another value of a key changes."""

    FIGURES = "the figures: it is another experiment"
    LAST_BITS = "only last bits of the figures"
    NOTHING = "no figure: where and how things run, and what they are called"


EFFECTS: dict[str, Effect] = {
    **dict.fromkeys(("seed_everything", "rounds", "model", "data", "trainer"), Effect.FIGURES),
    **dict.fromkeys(
        (
            *("model.executor", "model.clients_per_chunk", "model.reduce", "model.channels_last", "model.compile"),
            *("data.eval_batch_size", "trainer.accelerator", "trainer.devices", "trainer.num_nodes"),
            *("trainer.strategy", "trainer.plugins", "trainer.deterministic", "trainer.benchmark"),
            "trainer.inference_mode",
        ),
        Effect.LAST_BITS,
    ),
    **dict.fromkeys(
        (
            *("experiment", "label", "run_dir", "resume", "ckpt_path", "weights_only", "config", "verbose"),
            *("checkpoint_every", "grace_s", "threads", "output", "model.client_memory_mib", "data.root"),
            *("model.seed", "data.seed", "trainer.max_epochs"),  # follow from other keys
            *("trainer.logger", "trainer.default_root_dir", "trainer.max_time", "trainer.profiler"),
            *("trainer.enable_progress_bar", "trainer.enable_model_summary", "trainer.log_every_n_steps"),
            *("trainer.num_sanity_val_steps", "trainer.detect_anomaly", "trainer.fast_dev_run"),
        ),
        Effect.NOTHING,
    ),
}
"""Key or branch -> effect; the longest that fits decides, and a key that fits none decides the figures."""


class ClassKey(NamedTuple):
    """A key whose value is a class with arguments.

    Attributes:
        modules: Where a bare name is looked up; empty where the value may be any word (`ddp`).
        base: Bare name of the class that the choices derive from.
        many: Whether it holds a list of them.
        default: Dotted path of the class that null stands for, where arguments alone are given.
    """

    modules: tuple[str, ...] = ()
    base: str = ""
    many: bool = False
    default: str = ""


CLASSES: dict[str, ClassKey] = {
    "model.method": ClassKey(("fedpm_lightning.methods",), "Method"),
    "model.method.preconditioner": ClassKey(
        ("fedpm_lightning.preconditioners",), "LocalPreconditioner", default="fedpm_lightning.preconditioners.Foof"
    ),
    "model.method.local_optimizer": ClassKey(("torch.optim",), "Optimizer"),
    "model.net": ClassKey(("fedpm_lightning.models",), "Module"),
    "model.server_optimizer": ClassKey(("fedpm_lightning.server.adaptive", "torch.optim"), "Optimizer"),
    "model.lr_schedule": ClassKey(("fedpm_lightning.schedules",), "Schedule"),
    "model.message": ClassKey(default="fedpm_lightning.compression.Message"),
    "model.loss": ClassKey(("fedpm_lightning.losses", "torch.nn.modules.loss"), "Module"),
    "data.partition": ClassKey(("fedpm_lightning.data",), "Partition"),
    "trainer.logger": ClassKey(("lightning.pytorch.loggers",), "Logger", many=True),
    "trainer.callbacks": ClassKey(("fedpm_lightning.callbacks", "lightning.pytorch.callbacks"), "Callback", many=True),
    "trainer.plugins": ClassKey(many=True),
    "trainer.strategy": ClassKey(),
    "trainer.accelerator": ClassKey(),
    "trainer.profiler": ClassKey(),
}
"""Every key that may name a class, in the order in which options that do are read: the method first."""

BRANCHES = {
    "model": "fedpm_lightning.round.federation.Federation",
    "data": "fedpm_lightning.data.federated.FederatedData",
    "trainer": "lightning.pytorch.trainer.trainer.Trainer",
}
"""Branches, and the class whose arguments they hold."""

FOLLOWS = {"trainer.max_epochs": "rounds", "model.seed": "seed_everything", "data.seed": "seed_everything"}
"""Key -> the key that it follows from: refused unless it says the same (as a run's config.yaml does)."""

_CLIPPING = "local steps are the method's; NormClipping among trainer.callbacks bounds what clients send"

REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "trainer.default_root_dir": ((None,), "everything is written into the run's folder: say run_dir"),
    "weights_only": ((None, True), "reading a checkpoint never executes code: leave it out"),
    "trainer.accumulate_grad_batches": ((1,), "a batch is a round: use model.local_epochs or model.local_steps"),
    "trainer.gradient_clip_val": ((None,), _CLIPPING),
    "trainer.gradient_clip_algorithm": ((None,), _CLIPPING),
    "trainer.sync_batchnorm": ((False,), "clients train apart; model.buffer_policy is what there is"),
    "trainer.limit_predict_batches": ((None,), "nothing is predicted; fedpm export writes the network"),
    "trainer.enable_checkpointing": ((None, True), "every run has checkpoints; checkpoint_every makes them rarer"),
    "trainer.use_distributed_sampler": ((False,), "clients are dealt out over the processes, not samples"),
    "trainer.enable_autolog_hparams": ((True,), "loggers get the run's whole configuration: leave it out"),
    "trainer.model_registry": ((None,), "checkpoints lie in the run's folder: leave it out"),
    "trainer.barebones": ((False,), "a run has rows and checkpoints, which it forbids: leave it out"),
}
"""Key -> (the values that change nothing, what to say instead)."""


def effect(key: str) -> Effect:
    """Return what another value of a dotted key changes."""
    parts = key.split(".")
    fitting = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((EFFECTS[prefix] for prefix in fitting if prefix in EFFECTS), Effect.FIGURES)


def flatten(config: Mapping[str, object], prefix: str = "") -> dict[str, Any]:
    """Turn a nested configuration into dotted keys; lists stay whole."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if is_mapping(value) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
