"""Every key that a user may set, by its dotted name, with the default that holds here; the groups that help shows."""

from __future__ import annotations

from functools import cache

from fedpm_lightning.configuration.class_docs import Key, keys
from fedpm_lightning.configuration.experiment_keys import (
    EXPERIMENT_KEYS,
    LIGHTNING_KEYS,
    TRAINER_DEFAULTS,
    ExperimentKey,
)
from fedpm_lightning.configuration.keys import BRANCHES, FOLLOWS, REFUSED

GROUPS = {
    "the run": ("seed_everything", *EXPERIMENT_KEYS),
    "data": ("data.name", "data.source"),
    "heterogeneity: who holds which samples, and who takes part in a round": (
        "data.num_clients", "data.participation", "data.clients_per_round", "data.partition",
    ),
    "the network and its local work": (
        "model.net", "model.local_epochs", "model.local_steps", "model.lr_schedule", "model.loss", "model.l2",
        "model.buffer_policy",
    ),
    "the method; its arguments are --model.method.KEY": ("model.method", "model.weighting", "model.server_optimizer"),
    "how rounds run": ("model.executor",),
    "Lightning's Trainer: the usual ones": (
        "trainer.accelerator", "trainer.devices", "trainer.precision", "trainer.logger", "trainer.callbacks",
        "trainer.max_time", "trainer.check_val_every_n_epoch", "trainer.enable_progress_bar", "trainer.deterministic",
    ),
}  # fmt: skip
"""Title -> keys; others of data and model come last in `data` and in `how rounds run`."""

_REST = {"data": "data", "how rounds run": "model"}
_SHOWN = {
    "validate": {"run_dir", "ckpt_path", "verbose", "data", "trainer"},
    "test": {"run_dir", "ckpt_path", "verbose", "data", "trainer"},
    "partition": {"seed_everything", "output", "data"},
}
"""Command -> keys and branches that it shows; `fit` shows all."""


@cache
def every_key() -> dict[str, Key]:
    """Return dotted key -> what it is, without the keys of the classes that a key may name."""
    found = {name: _of_experiment(name, key) for name, key in {**EXPERIMENT_KEYS, **LIGHTNING_KEYS}.items()}
    for branch, path in BRANCHES.items():
        found |= {f"{branch}.{key.name}": key for key in keys(path)}
    here = {f"trainer.{name}": str(value).lower() for name, value in TRAINER_DEFAULTS.items()}
    here["data.partition"] = "Dirichlet"
    idle = {*FOLLOWS, *REFUSED} - set(LIGHTNING_KEYS)
    return {name: key._replace(default=here.get(name, key.default)) for name, key in found.items() if name not in idle}


def _of_experiment(name: str, key: ExperimentKey) -> Key:
    parts = getattr(key.type, "__args__", (key.type,))
    words = [getattr(part, "__name__", str(part)).replace("NoneType", "null") for part in parts]
    default = "null" if key.default is None else str(key.default).lower()
    return Key(name, (" or " if parts and isinstance(parts[0], type) else ", ").join(words), default, key.help)


def groups(command: str, everything: bool) -> dict[str, list[str]]:
    """Return title -> the keys that a command shows."""
    placed = {name for names in GROUPS.values() for name in names}
    found = {title: [*names, *(k for k in every_key() if k not in placed and k.startswith(f"{_REST.get(title)}."))]
              for title, names in GROUPS.items()}  # fmt: skip
    if everything:
        rest = [k for k in every_key() if k.startswith("trainer.") and k not in placed]
        return {**found, "Lightning's Trainer: all others": rest, "of one command": list(LIGHTNING_KEYS)[1:]}
    shown = _SHOWN.get(command)
    if shown is not None:
        found["the run"] = [k for k in (*EXPERIMENT_KEYS, *LIGHTNING_KEYS) if k in shown]
        found = {title: [k for k in names if k.partition(".")[0] in shown] for title, names in found.items()}
    return {title: names for title, names in found.items() if names}
