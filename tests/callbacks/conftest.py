"""A module whose rounds end as the test says, without clients, and trainers that run it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.callbacks import ProgressBar

from fedpm_lightning.errors import DivergedError
from fedpm_lightning.methods import FedAvg
from fedpm_lightning.round import Round
from fedpm_lightning.trainer.module import FederatedModule
from fedpm_lightning.types import ClientUpdate, Cohort

CONFIG = {
    "seed_everything": 7,
    "data": {"name": "toy", "num_clients": 2, "partition": {"kind": "Dirichlet", "alpha": 0.1}},
    "model": {
        "local_epochs": 5,
        "method": {"class_path": "fedpm_lightning.methods.FedAvg", "init_args": {"lr": 0.1}},
    },
    "trainer": {"max_epochs": 3},
}
ACCURACY = [0.2, 0.6, 0.4, 0.5, 0.1, 0.3]


class TinyData(LightningDataModule):
    name, num_clients, seed, eval_names = "toy", 2, 7, ["val"]
    partition_report = SimpleNamespace(
        to_dict=lambda: {
            "partition": {"kind": "Dirichlet", "arguments": {"alpha": 0.1}},
            "sizes": [3, 4],
            "sha256": "abc",
        }
    )

    def train_dataloader(self):
        return [0]

    def val_dataloader(self):
        return [0]


class TinyModule(FederatedModule):
    """Round r ends with val/acc = ACCURACY[r]; `fail` raises in a round, `late` records more in round 2."""

    def __init__(self, fail: tuple[int, Exception] | None = None, late: bool = False):
        super().__init__(torch.nn.Linear(1, 1), FedAvg(), seed=7)
        self.fail, self.late = fail, late

    def configure_callbacks(self):
        return []

    def on_fit_start(self):
        """No client trains."""

    def training_step(self, batch, batch_idx):
        r, hooks = self.current_epoch, self.federation.hooks
        round = Round(self.federation, Cohort(r, [None, None]))
        for hook in hooks:
            hook.on_round_start(round)
        self.row["train/loss"] = 1.0 / (r + 1)
        for client in (0, 1):
            update = ClientUpdate(client, 1, 1, {})
            round.announce_upload(update), round.announce_arrival(update)
        if self.fail and self.fail[0] == r + 1:
            raise self.fail[1]
        for hook in hooks:
            hook.on_before_aggregate(round)
        round.server_step(self.optimizers(), {})
        self.row.update({"comm/up_bytes": 1000.0 * (r + 1), "comm/down_bytes": 500.0, "time/total_s": 2.0 * (r + 1)})

    def validation_step(self, batch, batch_idx):
        sanity = self.trainer.sanity_checking
        self.row["val/acc"] = 0.1 if sanity else ACCURACY[self.current_epoch]
        if self.late and self.current_epoch == 1:
            self.row["drift"] = 3.5


@pytest.fixture
def config() -> dict[str, Any]:
    return CONFIG


@pytest.fixture
def fit(tmp_path: Path):
    """Train the tiny module: `fit(callbacks, rounds=3, ...)` returns (trainer, module)."""

    def run(callbacks, rounds=3, module=None, ckpt_path=None, **options):
        bar = any(isinstance(callback, ProgressBar) for callback in callbacks)
        trainer = Trainer(
            accelerator="cpu",
            max_epochs=rounds,
            callbacks=list(callbacks),
            default_root_dir=tmp_path,
            num_sanity_val_steps=-1,
            enable_model_summary=False,
            log_every_n_steps=1,
            **{"logger": False, "enable_checkpointing": False, "enable_progress_bar": bar, **options},
        )
        module = module or TinyModule()
        trainer.fit(module, datamodule=TinyData(), ckpt_path=ckpt_path)
        return trainer, module

    return run


@pytest.fixture
def tiny():
    """The module's class and the error by which the frame reports divergence."""
    return SimpleNamespace(Module=TinyModule, DivergedError=DivergedError, accuracy=ACCURACY)
