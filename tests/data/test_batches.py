from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedpm_lightning.data import IID, Augment, BatchSettings, FeatureShift, Normalise, Pool, ResidentClient
from fedpm_lightning.data.batches import batch_bounds
from fedpm_lightning.types import ClientData, LocalWork


def make(n: int, batch_size: int | None = 32, drop_last: bool = False, **pool) -> ResidentClient:
    x = torch.arange(200, dtype=torch.float64)[:, None]
    settings = BatchSettings(seed=3, batch_size=batch_size, drop_last=drop_last, eval_batch_size=50)
    rows = torch.arange(100, 100 + n)
    return ResidentClient(1, rows, Pool(x, torch.arange(200), pool.pop("partition", IID()), 4, settings, **pool))


def sizes(client: ResidentClient, **work: int) -> list[int]:
    return [len(x) for x, _ in client.batches(0, LocalWork(**work))]


@pytest.mark.parametrize(
    ("n", "drop_last", "expected"),
    [
        (0, False, []),
        (0, True, []),
        (1, False, [1]),
        (1, True, [1]),
        (2, False, [2]),
        (2, True, [2]),
        (31, False, [31]),
        (31, True, [31]),
        (32, True, [32]),
        (33, False, [33]),
        (33, True, [32]),
        (34, False, [32, 2]),
        (34, True, [32]),
        (64, False, [32, 32]),
        (65, False, [32, 33]),
        (65, True, [32, 32]),
    ],
)
def test_batches_of_tiny_clients(n, drop_last, expected):
    assert sizes(make(n, drop_last=drop_last), epochs=1) == expected
    assert make(n, drop_last=drop_last).steps(LocalWork(epochs=3)) == 3 * len(expected)


def test_full_batch_and_batches_of_one():
    assert sizes(make(70, batch_size=None), epochs=2) == [70, 70]
    assert sizes(make(3, batch_size=1), epochs=1) == [1, 1, 1]


@pytest.mark.parametrize("n", range(1, 70))
def test_bounds_cover_everything_once(n):
    bounds = batch_bounds(n, 8, drop_last=False)
    assert [i for start, end in bounds for i in range(start, end)] == list(range(n))
    assert n == 1 or min(end - start for start, end in bounds) > 1


def test_steps_are_the_first_batches_of_enough_epochs():
    client = make(50, batch_size=20)
    epochs = [x for x, _ in client.batches(2, LocalWork(epochs=3))]
    steps = [x for x, _ in client.batches(2, LocalWork(steps=7))]
    assert len(steps) == 7 and client.steps(LocalWork(steps=7)) == 7
    assert all(torch.equal(a, b) for a, b in zip(steps, epochs[:7], strict=True))
    assert sizes(make(0), steps=5) == []


def test_each_epoch_is_a_fresh_permutation_of_the_clients_own_samples():
    client = make(50, batch_size=None)
    (first, y), (second, _) = client.batches(0, LocalWork(epochs=2))
    assert not torch.equal(first, second)
    assert torch.equal(first.flatten().sort().values, torch.arange(100, 150, dtype=torch.float64))
    assert torch.equal(first.flatten().long(), y)


def test_batches_depend_on_seed_round_and_client_only():
    def drawn(round: int) -> torch.Tensor:
        return torch.cat([x for x, _ in make(50).batches(round, LocalWork(epochs=1))])

    expected = drawn(4)
    torch.rand(7)
    list(make(50).everything())
    assert torch.equal(drawn(4), expected) and not torch.equal(drawn(5), expected)


def test_everything_is_in_order_and_complete():
    client = make(70)
    assert [len(x) for x, _ in client.everything()] == [50, 20]
    assert [len(x) for x, _ in client.everything(chunk=32)] == [32, 32, 6]
    assert torch.equal(torch.cat([y for _, y in client.everything(7)]), torch.arange(100, 170))
    assert list(make(0).everything()) == []
    with pytest.raises(ValueError, match="chunk must be at least 1"):
        next(client.everything(0))


def test_images_are_augmented_in_training_only():
    x = torch.randint(0, 256, (40, 3, 8, 8), dtype=torch.uint8)
    normalise = Normalise((0.5,) * 3, (0.25,) * 3)
    settings = BatchSettings(batch_size=None)
    pool = Pool(x, torch.arange(40), IID(), 1, settings, normalise, Augment(pad=2))
    client = ResidentClient(0, torch.arange(40), pool)
    [(everything, _)] = client.everything()
    assert torch.allclose(everything, (x / 255 - 0.5) / 0.25, atol=1e-5) and everything.dtype == torch.float32
    [(batch, y)] = client.batches(0, LocalWork(epochs=1))
    assert not torch.equal(batch, everything[y])
    [(again, _)] = client.batches(0, LocalWork(epochs=1))
    assert torch.equal(batch, again)


def test_floating_inputs_pass_untouched():
    [(x, _)] = make(5, normalise=Normalise((0.5,), (0.5,))).everything()
    assert x.dtype == torch.float64 and torch.equal(x.flatten(), torch.arange(100.0, 105.0, dtype=torch.float64))


def test_noise_belongs_to_the_sample():
    """The same in every epoch, round and full gradient; another for each sample; of the client's level."""
    client = make(100, partition=FeatureShift("noise", 3.0))  # client 1 of 4: a deviation of 3 x 1/3
    [(x, rows)] = client.everything(100)
    noise = dict(zip(rows.tolist(), (x.flatten() - rows).tolist(), strict=True))
    for round in (0, 1):
        for batch, y in client.batches(round, LocalWork(epochs=2)):
            found = (batch.flatten() - y).tolist()
            assert found == [noise[row] for row in y.tolist()]
    assert len(set(noise.values())) == 100
    assert torch.tensor(list(noise.values())).std() == pytest.approx(
        1.0, abs=0.25
    )  # 100 draws: a standard error of 0.07
    assert torch.equal(torch.cat([x for x, _ in client.everything(7)]), x)


def test_every_client_has_noise_of_its_own_and_the_first_has_none():
    pool = make(1, partition=FeatureShift("noise", 3.0)).pool
    zeros = replace(pool, x=torch.zeros(200, 1, dtype=torch.float64))
    first, second, third = (next(ResidentClient(k, torch.arange(100), zeros).everything())[0] for k in range(3))
    assert not first.any() and not torch.allclose(third, 2 * second)


def test_rotated_inputs_are_those_of_training():
    x = torch.randn(6, 1, 9, 9)
    pool = Pool(x, torch.arange(6), FeatureShift("rotation", 90.0), 2, BatchSettings(batch_size=None))
    client = ResidentClient(1, torch.arange(6), pool)
    [(batch, y)] = client.batches(0, LocalWork(epochs=1))
    [(everything, _)] = client.everything()
    assert torch.equal(batch, everything[y]) and torch.allclose(everything, torch.rot90(x, 1, (2, 3)), atol=1e-5)


def test_implements_the_protocol():
    client: ClientData = make(3)
    assert client.client == 1 and client.num_samples == 3
