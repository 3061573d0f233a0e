"""FedAvg in bare PyTorch: no trainer, no callbacks, no files, no abstractions. The reference of round_cost.py.

The steps are those of `fedpm fit`: same cohorts, batches, augmentation, normalisation, local SGD, weighted mean and
evaluation, so that losses agree and only the frame's own work differs. Random numbers are drawn with the
frame's generators, in its order; everything else is written out here.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.measure import Clock
from benchmarks.tasks import SEED, Task
from fedpm_lightning.data.prepare import Prepared
from fedpm_lightning.rng import sample_cohort, torch_generator


def run(task: Task, clock: Clock) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Train; return the last round's train loss and test figures, and the final parameters."""
    data = task.make_data()
    plan, size, participants = data.prepared, task.data["batch_size"], data.cohort_size
    augment = plan.data.augment is not None and data.augment is not False
    net, local = task.make_net(), task.make_net()
    result: dict[str, float] = {}
    for round in range(task.rounds):
        clock.mark()
        total = {name: torch.zeros_like(p) for name, p in net.state_dict().items()}
        loss, samples = 0.0, 0
        for client in sample_cohort(SEED, round, len(plan.parts), participants):
            n = len(plan.parts[client])
            local.load_state_dict(net.state_dict())
            loss += n * train(local, batches(plan, client, round, size, task.local_epochs, augment), task.lr)
            samples += n
            for name, p in local.state_dict().items():
                total[name].add_(p, alpha=n)
        net.load_state_dict({name: t / samples for name, t in total.items()})
        result = {"train/loss": loss / samples, **evaluate(net, plan)}
    clock.mark()
    return result, net.state_dict()


def train(net: nn.Module, data: Iterator[tuple[Tensor, Tensor]], lr: float) -> float:
    """Run plain SGD in place; return the mean loss over the samples seen."""
    sgd, total, seen = torch.optim.SGD(net.parameters(), lr=lr), torch.zeros(()), 0
    net.train()
    for x, y in data:
        sgd.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        sgd.step()
        total += loss.detach() * len(y)
        seen += len(y)
    return float(total) / seen


def batches(
    plan: Prepared, client: int, round: int, size: int, epochs: int, augment: bool
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield a client's shuffled, perhaps augmented, normalised batches."""
    data, rows = plan.data, torch.from_numpy(plan.parts[client])
    generator = torch_generator(SEED, "batches", round, client)
    for _ in range(epochs):
        order = rows[torch.randperm(len(rows), generator=generator)]
        if augment:
            offsets = torch.randint(0, 9, (2, len(rows)), generator=generator)
            flips = torch.randint(0, 2, (1, len(rows)), generator=generator)[0].bool()
        for start in range(0, len(rows), size):
            part = slice(start, start + size)
            x, y = data.x_train[order[part]], data.y_train[order[part]]
            if augment:
                x = crop_and_flip(x, offsets[:, part], flips[part])
            yield (x if data.normalise is None else normalised(x, *statistics(plan))), y


def crop_and_flip(x: Tensor, offsets: Tensor, flips: Tensor) -> Tensor:
    """Crop uint8 images [b, c, h, w] out of 4 pixels of padding, each at its offset [2, b], and mirror some."""
    b, c, h, w = x.shape
    rows = torch.arange(h) + offsets[0][:, None]
    columns = torch.where(flips[:, None], torch.arange(w - 1, -1, -1), torch.arange(w)) + offsets[1][:, None]
    image, channel = torch.arange(b)[:, None, None, None], torch.arange(c)[None, :, None, None]
    return F.pad(x, (4, 4, 4, 4))[image, channel, rows[:, None, :, None], columns[:, None, None, :]]


def statistics(plan: Prepared) -> tuple[Tensor, Tensor]:
    """Return mean and deviation per channel, [c, 1, 1], on the scale 0..255."""
    normalise = plan.data.normalise
    assert normalise is not None
    return 255 * torch.tensor(normalise.mean)[:, None, None], 255 * torch.tensor(normalise.std)[:, None, None]


def normalised(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return uint8 images as floats of mean 0 and deviation 1."""
    return (x.float() - mean) / std


@torch.no_grad()
def evaluate(net: nn.Module, plan: Prepared, size: int = 1000) -> dict[str, float]:
    """Return loss and accuracy on the test part."""
    data, loss, right = plan.data, 0.0, 0
    net.eval()
    for start in range(0, len(data.x_test), size):
        x, y = data.x_test[start : start + size], data.y_test[start : start + size]
        logits = net(x if data.normalise is None else normalised(x, *statistics(plan)))
        loss += float(F.cross_entropy(logits, y, reduction="sum"))
        right += int((logits.argmax(1) == y).sum())
    return {"test/loss": loss / len(data.x_test), "test/acc": right / len(data.x_test)}
