"""One spelling of what means the same, so that resume and `fedpm compare` know one experiment by its configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, cast

from fedpm_lightning.checks import is_list, is_mapping
from fedpm_lightning.configuration.keys import CLASSES, flatten

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
    flat = {key: public(value) for key, value in with_one_message(flat).items()}
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


def public(value: Any) -> Any:
    """Return a value with this package's class paths as `fedpm_lightning.FOLDER.Class`, whichever file holds it."""
    if isinstance(value, str):
        return re.sub(r"^(fedpm_lightning\.\w+)\.[\w.]+\.(\w+)$", r"\1.\2", value)
    if is_mapping(value):
        return {key: public(inner) for key, inner in value.items()}
    return [public(inner) for inner in value] if is_list(value) else value


def acting(callbacks: Any) -> list[Any] | None:
    """Return the callbacks that may change a figure; None if there are none."""
    given = callbacks if is_list(callbacks) else [callbacks] if callbacks else []
    paths = [cast("Any", entry).get("class_path") if is_mapping(entry) else entry for entry in given]
    kept = [e for e, path in zip(given, paths, strict=True) if str(path).rsplit(".", 1)[-1] not in OBSERVERS]
    return kept or None
