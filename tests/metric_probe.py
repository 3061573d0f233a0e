"""A callback that writes down what a run's figures are made of; named in YAML, so that `fedpm fit` runs it."""

from __future__ import annotations

import torch

from fedpm_lightning.callbacks.base import FederatedCallback


class Probe(FederatedCallback):
    """Keeps, for each round, what clients sent and what the global model answers on the whole splits."""

    rounds: list[dict] = []

    def on_round_start(self, round):
        parameters = [*round.broadcast.params.values()]
        self.now = {"clients": [], "theta_bytes": sum(4 * p.numel() for p in parameters), "cohort": len(round.cohort)}

    def on_client_end(self, round, update):
        sent = sum(4 * p.numel() for p in update.params.values())
        self.now["clients"].append((update.num_samples, update.metrics["loss"], sent))

    def on_validation_end(self, trainer, module):
        if trainer.sanity_checking:
            return
        data = trainer.datamodule
        for split, loader in zip(data.eval_names, data.val_dataloader(), strict=True):
            inputs, targets = (torch.cat(parts) for parts in zip(*loader, strict=True))
            with torch.no_grad():
                logits = module.net(inputs).double()
            loss = torch.nn.functional.cross_entropy(logits, targets)
            right = (logits.argmax(1) == targets).double().mean()
            self.now[split] = {"loss": float(loss), "acc": float(right), "n": len(targets), "batches": len(loader)}

    def on_train_epoch_end(self, trainer, module):
        Probe.rounds.append(self.now)
