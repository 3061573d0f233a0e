"""The round as one training batch of a LightningModule.

A cohort comes in as the batch, every client trains from the global weights, a callback aggregates, a server optimizer
steps. One batch = one round = one epoch = one `global_step`, so that `max_epochs`, checkpoints, evaluation, schedulers,
loggers and progress bars all speak of rounds. What happens in a round stands in round/, without Lightning.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from lightning.pytorch import Callback, LightningModule
from torch import Tensor, nn
from torch.optim import Optimizer

from fedpm_lightning.callbacks.base import Aggregation, FederatedCallback
from fedpm_lightning.callbacks.metrics.communication import Communication
from fedpm_lightning.callbacks.metrics.timing import Timing
from fedpm_lightning.callbacks.run.files import find_run_files
from fedpm_lightning.callbacks.trainer_access import callbacks_of, data_of
from fedpm_lightning.methods.base import Method
from fedpm_lightning.round import Federation, Hooks
from fedpm_lightning.round.data import Data, is_language
from fedpm_lightning.round.evaluation import SPLITS, check_loss
from fedpm_lightning.trainer.loops import install_loops
from fedpm_lightning.trainer.start_check import check_monitors, check_trainer
from fedpm_lightning.types import Batch, Cohort

_MOST_LINES = 12  # of a method's rules; more are told as their sum


class FederatedModule(LightningModule):
    """Runs a federated experiment, one communication round per training batch.

    Args:
        net: The network; any torch.nn.Module.
        method: The federated method (FedPM, FedAvg, ...).
        options: As `round.Federation` takes them.
    """

    def __init__(self, net: nn.Module, method: Method, **options: Any) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.federation = Federation(net, method, **options)
        # Modules of this one, so that they, and class weights of the loss, move to the device and into checkpoints.
        self.net, self.loss = net, self.federation.objective.loss

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; the name of the running hook, which Lightning notes at every call, as a plain one."""
        if name == "_current_fx_name":  # nn.Module would look for parameters in it, at the cost of the hook itself
            vars(self)[name] = value
        else:
            super().__setattr__(name, value)

    @property
    def row(self) -> dict[str, float]:
        """The figures of the running round."""
        return self.federation.row

    @property
    def data(self) -> Data:
        """The trainer's data."""
        return data_of(self.trainer)

    def setup(self, stage: str) -> None:
        """Check the trainer's settings and register the callbacks, before a checkpoint is loaded."""
        self.federation.print = self.print_line
        self.federation.use_hooks([callback for callback in callbacks_of(self.trainer) if isinstance(callback, Hooks)])
        if stage == "fit":
            check_trainer(self.trainer)
            check_monitors(self.trainer, self.data.eval_names, is_language(self.data))
            self.federation.use_folder(Path(self.trainer.default_root_dir))
            install_loops(self.trainer)

    def configure_optimizers(self) -> Optimizer:
        """Return the server optimizer over theta."""
        return self.federation.make_optimizer()

    def configure_callbacks(self) -> list[Callback]:
        """Add the default callbacks that the trainer does not have in some form already."""
        present = callbacks_of(self.trainer)
        frame: list[FederatedCallback] = [Communication(), Timing(), Aggregation()]
        return [cb for cb in frame if not any(isinstance(other, type(cb)) for other in present)]

    def on_fit_start(self) -> None:
        """Check that network and data fit, make the server's state, and print what was decided."""
        context = self.trainer.precision_plugin.forward_context
        lines = self.federation.begin(self.data, self.trainer.max_epochs or 1, self.current_epoch, context)
        rules = self.federation.rules
        many = len(rules) > _MOST_LINES and find_run_files(self.trainer) is not None
        for line in [*([f"{rules[0]} (each in rules.txt)"] if many else rules), *lines]:
            self.print_line(line)

    def training_step(self, batch: Cohort, batch_idx: int) -> None:
        """Run one communication round on the cohort `batch`."""
        self.run_round(batch, cast(Optimizer, self.optimizers()))

    def run_round(self, cohort: Cohort, optimizer: Optimizer) -> None:
        """Run one round with the server optimizer, and show its row."""
        self.federation.run(cohort, optimizer)
        self.publish()

    def on_train_epoch_start(self) -> None:
        """Begin the round's row."""
        self.row.clear()

    def on_fit_end(self) -> None:
        """Free what only training needs."""
        self.federation.end()

    def publish(self) -> None:
        """Show the row to Lightning's own callbacks (checkpoints, early stopping); loggers get it once a round."""
        if self.trainer.state.fn != "fit":
            self.log_dict(self.row, logger=False)
            return
        # `log_dict` would end in this very dictionary, at the cost of a small network's round.
        values = torch.tensor(list(self.row.values())).unbind()  # one allocation for all
        self.trainer.callback_metrics.update(zip(self.row, values, strict=True))

    def print_line(self, line: str) -> None:
        """Print a line once, above the progress bars."""
        bar = self.trainer.progress_bar_callback
        if self.trainer.is_global_zero:
            (print if bar is None else bar.print)(line)

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> Tensor:
        """Evaluate the global model on a batch of the split `eval_names[dataloader_idx]`; return the classes [B]."""
        return self.federation.evaluate_batch(self.data.eval_names[dataloader_idx], batch)

    def on_validation_epoch_end(self) -> None:
        """Record the splits' figures."""
        for split in SPLITS:
            self.row.update(self.federation.evaluation.compute(split, is_language(self.data)))
            if not self.trainer.sanity_checking:
                name, bound = f"{split}/loss", self.federation.max_loss
                check_loss(self.current_epoch, name, self.row.get(name), bound)
        self.publish()
        if self.trainer.state.fn != "fit":
            for name, value in self.row.items():
                self.print_line(f"{name} {value:.4f}")

    def test_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Evaluate the global model on one test batch; return the predicted classes [B]."""
        return self.federation.evaluate_batch("test", batch)

    def on_test_epoch_end(self) -> None:
        """Record and log the test figures."""
        self.on_validation_epoch_end()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the server's and the clients' states."""
        checkpoint["federated"] = self.federation.state_dict(self.current_epoch)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the server's and the clients' states."""
        # Lightning loads the weights before it converts the module: those of 64-true would pass through float32.
        self.trainer.precision_plugin.convert_module(self)
        federated = checkpoint["federated"]
        apart = bool(federated.get("side_files"))  # evaluation needs no clients, and leaves their files unread
        if apart and self.trainer.state.fn == "fit":
            raise ValueError("this checkpoint keeps its clients in files: add RunCheckpoints to the trainer")
        self.federation.load_state_dict(federated, clients=not apart)
