"""The keys of the experiment itself, and our defaults of Lightning's keys."""

from __future__ import annotations

from types import NoneType
from typing import Any, Literal, NamedTuple, get_args


class ExperimentKey(NamedTuple):
    """A key that is no argument of a class.

    Attributes:
        type: Of its value.
        default: Its default.
        help: What it decides.
    """

    type: Any
    default: Any
    help: str

    @property
    def nullable(self) -> bool:
        """Whether it may be null."""
        return NoneType in get_args(self.type)


EXPERIMENT_KEYS = {
    "rounds": ExperimentKey(int, 100, "communication rounds"),
    "experiment": ExperimentKey(str, "experiment", "first part of the run's name"),
    "label": ExperimentKey(str | None, None, "the method's name in tables; null: its class's"),
    "run_dir": ExperimentKey(str | None, None, "the run's folder; null: runs/<experiment>-<label>-s<seed>-<time>"),
    "resume": ExperimentKey(
        Literal["auto", "never", "must"],
        "auto",
        "go on from run_dir's last checkpoint: when there is one, never, or fail without one",
    ),
    "checkpoint_every": ExperimentKey(int, 1, "rounds between two checkpoints"),
    "threads": ExperimentKey(
        int | None, None, "threads on the CPU; null: $OMP_NUM_THREADS, else 1 for a small network, else the cores"
    ),
    "grace_s": ExperimentKey(float, 20.0, "seconds a round may take after a signal"),
}
"""Those that this package adds."""

LIGHTNING_KEYS = {
    "seed_everything": ExperimentKey(int, 0, "the seed of everything that is drawn"),
    "ckpt_path": ExperimentKey(str | None, None, "a checkpoint to begin from; null: run_dir's"),
    "weights_only": ExperimentKey(bool | None, None, "no other value: reading a checkpoint never executes code"),
    "verbose": ExperimentKey(bool, True, "in test and validate: print the figures"),
    "output": ExperimentKey(str | None, None, "in partition: folder for partition.json and pictures"),
}
"""Those that Lightning's commands, and `fedpm partition`, have beside them."""

DEFAULTS = {"data": {"partition": {"class_path": "fedpm_lightning.data.Dirichlet", "init_args": {"alpha": 0.1}}}}
"""What lies under every file."""

TRAINER_DEFAULTS: dict[str, Any] = {
    "logger": False,
    "devices": 1,
    "log_every_n_steps": 1,
    "num_sanity_val_steps": -1,  # a full evaluation of theta_0, once, before the first round
    "use_distributed_sampler": False,
    "enable_model_summary": False,
}
"""Of Lightning's Trainer, where they differ from its own."""
