"""A canonical form of configurations, by which resume and `fedpm compare` recognise the same experiment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from fedpm_lightning.checks import is_list, is_mapping
from fedpm_lightning.configuration.keys import CLASSES, flatten

OBSERVERS = frozenset({
    "ClientAccuracy", "ClientDrift", "Communication", "ConditionNumber", "ConfusionMatrix", "Damping",
    "PersonalAccuracy", "PreconditionerDrift", "RoundProgress", "RunFiles", "SimulatedNetwork", "TimeShares", "Timing",
    "WandbRun",
})  # fmt: skip
"""Callbacks that change nothing: a run has the same figures with and without them."""

LEGACY_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(("data.label_column", "data.input_columns", "data.stride", "data.candidates")),
    "data.sampling": "uniform",
    "data.partition.init_args.clients": "all",
    "data.partition.init_args.min_samples": 1,
    "model.method.init_args.local_optimizer": None,
    "model.method.init_args.preconditioner.init_args.norms": "plain",
    "model.method.init_args.preconditioner.init_args.plain": [],
}
"""Key that was added later -> the value with which runs from before it were made."""

KNOWN_DATA = frozenset({"digits", "cifar10", "cifar100", "mnist", "fashion_mnist", "svhn", "a9a", "w8a", "shakespeare"})
"""For these names `data.source` only locates the data; for any other it identifies them."""

MESSAGE_ARGUMENTS = {
    "rounding": {"parameters=int8"}, "share": {"parameters=topk"}, "levels": {"parameters=qsgd"},
    "bucket": {"parameters=qsgd"}, "factor_share": {"factors=low_rank", "broadcast_factors=low_rank"},
}  # fmt: skip
"""Argument of model.message -> the settings under which it has an effect."""

MESSAGE_DEFAULTS = {
    "parameters": "full", "rounding": "stochastic", "share": None, "levels": 7, "bucket": 512, "error_feedback": False,
    "factors": "full", "factor_share": 0.95, "factors_every": 1, "broadcast_factors": "full",
}  # fmt: skip
"""Arguments of model.message that may be left out; with all of them, everything is sent unchanged."""


def canonical(config: Mapping[str, object]) -> dict[str, Any]:
    """Return a configuration as dotted keys in canonical form: equivalent configurations become equal.

    `model.net.class_path` is the value of `model.net`, so that a class and null differ in one key, not in two.
    """
    flat = {key.removesuffix(".class_path"): value for key, value in flatten(with_callback_list(config)).items()}
    branches = {key.rpartition(".")[0] for key in flat}
    flat = {key: value for key, value in LEGACY_DEFAULTS.items() if key.rpartition(".")[0] in branches} | flat
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
    flat = {key: public(value) for key, value in with_message_summary(flat).items()}
    if "trainer.callbacks" in flat:
        flat["trainer.callbacks"] = with_effect(flat["trainer.callbacks"])
    return flat


def with_message_summary(flat: dict[str, Any]) -> dict[str, Any]:
    """Return dotted keys with `model.message` as one value: the arguments that count and differ from the defaults."""
    key = "model.message"
    if flat.get(key) not in (None, CLASSES[key].default):
        return flat
    given = {name.rsplit(".", 1)[-1]: value for name, value in flat.items() if name.startswith(f"{key}.")}
    forms = {f"{name}={value}" for name, value in given.items()}
    departures = [
        str(value) if name == "parameters" else f"{name}={value}"
        for name, value in given.items()
        if forms & MESSAGE_ARGUMENTS.get(name, forms) and value != MESSAGE_DEFAULTS.get(name, ...)
    ]
    rest = {name: value for name, value in flat.items() if name != key and not name.startswith(f"{key}.")}
    return {**rest, key: ", ".join(departures) or "full"}


def with_callback_list(config: Mapping[str, object]) -> Mapping[str, Any]:
    """Return a configuration whose `trainer.callbacks` is a list, also where a single callback was given."""
    trainer = config.get("trainer")
    if not is_mapping(trainer) or not is_mapping(alone := trainer.get("callbacks")):
        return config
    return {**config, "trainer": {**trainer, "callbacks": [alone]}}


def data_source(flat: Mapping[str, object]) -> str | None:
    """Return the last part of `data.source` where it identifies the data: folders differ between machines."""
    source = flat.get("data.source")
    known = str(flat.get("data.name") or "digits") in KNOWN_DATA
    return None if source is None or known else PurePath(str(source)).name


def public(value: object) -> Any:
    """Return a value with this package's class paths as `fedpm_lightning.FOLDER.Class`, whichever file holds it."""
    if isinstance(value, str):
        return re.sub(r"^(fedpm_lightning\.\w+)\.[\w.]+\.(\w+)$", r"\1.\2", value)
    if is_mapping(value):
        return {key: public(inner) for key, inner in value.items()}
    return [public(inner) for inner in value] if is_list(value) else value


def with_effect(callbacks: object) -> list[Any] | None:
    """Return the callbacks that may change a figure; None if there are none."""
    given = callbacks if is_list(callbacks) else [callbacks] if callbacks else []
    paths = [entry.get("class_path") if is_mapping(entry) else entry for entry in given]
    kept = [e for e, path in zip(given, paths, strict=True) if str(path).rsplit(".", 1)[-1] not in OBSERVERS]
    return kept or None
