"""How well each client is served by a model of its own: the global one, fine-tuned on its training data."""

from __future__ import annotations

from typing import Literal

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.optim import SGD

from fedpm_lightning.callbacks.base import FederatedCallback, federation_of
from fedpm_lightning.callbacks.metrics.client_accuracy import summary
from fedpm_lightning.callbacks.trainer_access import Split, TrainerData, data_of
from fedpm_lightning.checks import at_least, positive
from fedpm_lightning.client.client import Client
from fedpm_lightning.client.local_model import LocalModel
from fedpm_lightning.ranks import all_items, own_clients
from fedpm_lightning.rng import numpy_generator, preserve_generators, seeded
from fedpm_lightning.round import Federation
from fedpm_lightning.round.evaluation import predicted
from fedpm_lightning.types import LocalWork


class PersonalAccuracy(FederatedCallback):
    """Accuracy of each client's PERSONAL model on its own share of the test samples, over all N clients.

    A personal model is the global one after the round, and E epochs (or K steps) of plain SGD on the client's training
    data, whatever the method: what is compared is the starting point. The split is dealt out once, class by class, in
    proportion to the clients' training samples of the class: a share has its client's label mix, and no sample is in
    two. Recorded every so many rounds, every client counting the same: personal_acc/mean, personal_acc/std (over the
    clients, divided by their number), personal_acc/min and personal_acc/worst_tenth (mean of the worst tenth, at least
    one client), and personal_acc/gain, the mean less that of the global model on the same shares. Clients without
    training samples or without a share do not count. The run itself is the same without it, bit for bit.

    Args:
        lr: Rate of the SGD, above 0.
        epochs: E; null with `steps`.
        steps: K; null with `epochs`.
        every: Measure in each round whose number (from 1) is a multiple of it.
        split: The split that is dealt out: test or val.

    Raises:
        ValueError: If a value is outside its range.
    """

    records = ("personal_acc/",)

    def __init__(
        self,
        lr: float = 0.05,
        epochs: int | None = 1,
        steps: int | None = None,
        every: int = 10,
        split: Literal["test", "val"] = "test",
    ) -> None:
        if split not in ("test", "val"):
            raise ValueError(f"split must be test or val, got {split!r}")
        self.lr, self.work, self.split = positive("lr", lr), LocalWork(epochs, steps), split
        self.every = int(at_least("every", every, 1))
        self._shares: list[Tensor] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Deal out the split, or print that there is none.

        Raises:
            ValueError: If a sample has more than one label.
        """
        data = data_of(trainer)
        if self.split not in data.eval_names:
            line = f"PersonalAccuracy: no {self.split} split is evaluated here; personal_acc/* stay empty"
            federation_of(pl_module).print(line)
            return
        targets = self._loader(data).y
        if targets.ndim != 1:
            raise ValueError("PersonalAccuracy deals samples out by their one label, and these have more: leave it out")
        histogram = torch.as_tensor(data.partition_report.histogram)
        self._shares = shares(targets.cpu().long(), histogram, federation_of(pl_module).seed)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Fine-tune and evaluate; theta has moved, and the round's clock has stopped."""
        number, federation = trainer.current_epoch, federation_of(pl_module)
        if not self._shares or (number + 1) % self.every:
            return
        with trainer.precision_plugin.forward_context(), preserve_generators():
            found = self.measure(federation, data_of(trainer), number)
        accuracies, before = torch.tensor(found, dtype=torch.float64).unbind(1)
        for name, value in summary(accuracies).items():
            federation.record(f"personal_acc/{name}", value)
        federation.record("personal_acc/gain", float(accuracies.mean() - before.mean()))

    def measure(self, federation: Federation, data: TrainerData, round: int) -> list[tuple[float, float]]:
        """Return (accuracy of the personal model, of the global model) by client, on all ranks."""
        broadcast, model, loader = federation.make_broadcast(round), federation.scratch, self._loader(data)
        everyone = [data.client(k) for k in range(data.num_clients)]
        counted = [one for one in everyone if one.num_samples and len(self._shares[one.client])]
        found: list[tuple[int, float, float]] = []
        for one in own_clients(counted, fixed=False):
            rows = self._shares[one.client].to(loader.x.device)
            x, y = loader.x[rows], loader.y[rows]
            x = x if loader.normalise is None else loader.normalise(x)
            client = Client(one, broadcast, model, self.work, {}, federation.buffer_policy)
            with seeded(federation.seed, "personal", round, one.client, [model.device]):
                client.start()
                before = accuracy(model, x, y)
                client.train(SGD(model.params.values(), lr=self.lr))
                found.append((one.client, accuracy(model, x, y), before))
        return [(after, before) for _, after, before in sorted(all_items(found))]

    def _loader(self, data: TrainerData) -> Split:
        """Return the split's loader."""
        return dict(zip(data.eval_names, data.val_dataloader(), strict=True))[self.split]


@torch.no_grad()
def accuracy(model: LocalModel, x: Tensor, y: Tensor) -> float:
    """Return the share of samples that the network predicts right in evaluation mode; it is in training mode after."""
    model.net.eval()
    right = predicted(model.net(model.in_memory_format(x))) == y
    model.net.train()
    return float(right.double().mean())


def shares(targets: Tensor, histogram: Tensor, seed: int) -> list[Tensor]:
    """Deal samples out to clients, class by class, in proportion to the clients' training samples of the class.

    Args:
        targets: Classes of the samples, int64 [n].
        histogram: n_ic, [N, classes].
        seed: Of the order in which a class's samples are dealt out.

    Returns:
        The sorted positions of each client's samples; those of a class that nobody trains on are nobody's.
    """
    dealt: list[list[Tensor]] = [[] for _ in range(len(histogram))]
    for c in range(histogram.shape[1]):
        rows, owned = (targets == c).nonzero().squeeze(1), histogram[:, c].double()
        if not len(rows) or not owned.sum():
            continue
        order = torch.from_numpy(numpy_generator(seed, "test-share", 0, c).permutation(len(rows)))
        ends = (owned.cumsum(0) / owned.sum() * len(rows)).round().long().tolist()
        for k, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            dealt[k].append(rows[order[start:end]])
    return [torch.cat(parts).sort().values if parts else torch.zeros(0, dtype=torch.long) for parts in dealt]
