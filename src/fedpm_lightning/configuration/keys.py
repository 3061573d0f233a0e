"""The table of keys: which name a class, which follow from another key, and what a change of each decides.

Resume, `fedpm compare`, sweeps and the docs read this table, so that they agree on what the same experiment is.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any, NamedTuple, cast

from fedpm_lightning.checks import is_list, is_mapping


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

OBSERVERS = frozenset({
    "ClientAccuracy", "ClientDrift", "Communication", "ConditionNumber", "ConfusionMatrix", "Damping",
    "PersonalAccuracy", "PreconditionerDrift", "RoundProgress", "RunFiles", "SimulatedNetwork", "TimeShares", "Timing",
    "WandbRun",
})  # fmt: skip
"""Callbacks that only look: a run with them has the figures of one without."""

LATER: dict[str, Any] = {
    **dict.fromkeys(("data.label_column", "data.input_columns", "data.stride", "data.candidates")),
    "data.sampling": "uniform",
    "data.partition.init_args.clients": "all",
    "data.partition.init_args.min_samples": 1,
    "model.method.init_args.local_optimizer": None,
    "model.method.init_args.preconditioner.init_args.norms": "plain",
    "model.method.init_args.preconditioner.init_args.plain": [],
}
"""Key that older runs and checkpoints lack -> the value that means what those runs did."""

KNOWN_DATA = frozenset({"digits", "cifar10", "cifar100", "mnist", "fashion_mnist", "svhn", "a9a", "w8a", "shakespeare"})
"""With these names `data.source` only says where the same data lie; with any other it says which data they are."""


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

MESSAGE_ARGUMENTS = {
    "rounding": {"parameters=int8"}, "share": {"parameters=topk"}, "levels": {"parameters=qsgd"},
    "bucket": {"parameters=qsgd"}, "factor_share": {"factors=low_rank", "broadcast_factors=low_rank"},
}  # fmt: skip
"""Argument of model.message -> what it belongs to: it changes nothing of a message without that."""

MESSAGE_DEFAULTS = {
    "parameters": "full", "rounding": "stochastic", "share": None, "levels": 7, "bucket": 512, "error_feedback": False,
    "factors": "full", "factor_share": 0.95, "factors_every": 1, "broadcast_factors": "full",
}  # fmt: skip
"""Arguments of model.message that need not be said; with all of them everything is sent as it is."""

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


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turn a nested configuration into dotted keys; lists stay whole."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if is_mapping(value) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def canonical(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration as dotted keys, with one spelling for what means the same.

    `model.net.class_path` is the value of `model.net`, so that a class and null differ in one key, not in two.
    """
    flat = {key.removesuffix(".class_path"): value for key, value in flatten(listed(config)).items()}
    branches = {key.rpartition(".")[0] for key in flat}
    flat = {key: value for key, value in LATER.items() if key.rpartition(".")[0] in branches} | flat
    if flat.get("data.participation") == 1:
        flat["data.participation"] = None
    if flat.get("data.clients_per_round") is not None and flat["data.clients_per_round"] == flat.get(
        "data.num_clients"
    ):
        flat["data.clients_per_round"] = None
    for key, default in (("model.lr_schedule", ".Constant"), ("model.server_optimizer", ".Assign")):
        if str(flat.get(key)).endswith(default):
            flat[key] = None
    source = data_source(flat)
    flat = {
        key: source if key == "data.source" else value for key, value in flat.items() if key != "data.source" or source
    }
    flat = with_one_message(flat)
    if "trainer.callbacks" in flat:
        flat["trainer.callbacks"] = acting(flat["trainer.callbacks"])
    return flat


def with_one_message(flat: dict[str, Any]) -> dict[str, Any]:
    """Return dotted keys with all of the package's model.message in one: its form, and what else departs from it."""
    key = "model.message"
    if flat.get(key) not in (None, CLASSES[key].default):
        return flat
    given = {name.rsplit(".", 1)[-1]: value for name, value in flat.items() if name.startswith(f"{key}.")}
    forms = {f"{name}={value}" for name, value in given.items()}
    said = [
        str(value) if name == "parameters" else f"{name}={value}"
        for name, value in given.items()
        if forms & MESSAGE_ARGUMENTS.get(name, forms) and value != MESSAGE_DEFAULTS.get(name, ...)
    ]
    rest = {name: value for name, value in flat.items() if name != key and not name.startswith(f"{key}.")}
    return {**rest, key: ", ".join(said) or "full"}


def listed(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a configuration in which one callback alone, with arguments of its own, is a list of one as well."""
    trainer = config.get("trainer")
    alone = cast("Any", trainer).get("callbacks") if isinstance(trainer, Mapping) else None
    if not isinstance(alone, Mapping):
        return config
    return {**config, "trainer": {**cast("Mapping[str, Any]", trainer), "callbacks": [alone]}}


def data_source(flat: Mapping[str, Any]) -> str | None:
    """Return what `data.source` says of the data beside `data.name`: its last part, as folders differ by machine."""
    source = flat.get("data.source")
    known = str(flat.get("data.name") or "digits") in KNOWN_DATA
    return None if source is None or known else PurePath(str(source)).name


def acting(callbacks: Any) -> list[Any] | None:
    """Return the callbacks that may change a figure; None if there are none."""
    given = callbacks if is_list(callbacks) else [callbacks] if callbacks else []
    paths = [cast("Any", entry).get("class_path") if is_mapping(entry) else entry for entry in given]
    kept = [e for e, path in zip(given, paths, strict=True) if str(path).rsplit(".", 1)[-1] not in OBSERVERS]
    return kept or None
