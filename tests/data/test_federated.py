from __future__ import annotations

import lightning.pytorch as pl
import numpy as np
import pytest
import torch

from fedpm_lightning.data import IID, ArraySet, Dirichlet, FederatedData, Natural, sources
from fedpm_lightning.data.cohorts import cohort_size
from fedpm_lightning.types import Cohort, LocalWork


def digits(**arguments) -> FederatedData:
    return FederatedData(**arguments)


def test_defaults_on_digits():
    data = digits()
    data.setup()
    assert (data.num_classes, data.input_shape, data.eval_names) == (10, (1, 8, 8), ["val", "test"])
    assert sum(data.partition_report.sizes) + 144 == 1438 and data.num_clients == 10
    assert data.partition_report.partition == Dirichlet(0.1).describe()
    val, test = data.val_dataloader()
    assert len(val) == 1 and sum(len(y) for _, y in test) == 359
    assert [loader is test for loader in data.test_dataloader()] == [True]


def test_validation_is_balanced_and_apart_from_training():
    data = digits(val_fraction=0.2)
    prepared, full = data.prepared, digits(val_fraction=0).prepared
    counts = torch.bincount(prepared.y_val)
    assert counts.min() >= 27 and counts.max() <= 30
    rows = torch.cat([prepared.x_val, prepared.data.x_train]).flatten(1)
    assert torch.equal(rows.sort(0).values, full.data.x_train.flatten(1).sort(0).values)
    assert digits(val_fraction=0).eval_names == ["test"] and len(digits(val_fraction=0).val_dataloader()) == 1


def test_cohorts_depend_on_seed_and_round_only():
    one = digits(participation=0.3, partition=IID(), batch_size=8)
    other = digits(participation=0.3, augment=True, limit_train=500)
    rounds = [one.cohort(t).ids for t in range(20)]
    assert rounds == [other.cohort(t).ids for t in reversed(range(20))][::-1]
    assert rounds != [digits(participation=0.3, seed=1).cohort(t).ids for t in range(20)]
    assert {len(ids) for ids in rounds} == {3} and len(set(map(tuple, rounds))) > 10


@pytest.mark.parametrize(
    ("n", "share", "number", "size"),
    [
        (10, None, None, 10),
        (10, 0.3, None, 3),
        (10, 0.25, None, 3),
        (10, 0.01, None, 1),
        (7, 1.0, None, 7),
        (9, None, 4, 4),
    ],
)
def test_cohort_size(n, share, number, size):
    assert cohort_size(n, share, number) == size


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"participation": 0.5, "clients_per_round": 3}, "set one of them to null"),
        ({"participation": 0.0}, r"in \(0, 1\], got 0"),
        ({"participation": 1.5}, r"in \(0, 1\], got 1.5"),
        ({"clients_per_round": 11}, r"in 1\.\.10, got 11"),
        ({"clients_per_round": 0}, r"in 1\.\.10, got 0"),
        ({"num_clients": 0}, r"data\.num_clients must be at least 1, got 0"),
        ({"batch_size": 0}, r"data\.batch_size must be at least 1"),
        ({"limit_train": 0}, r"data\.limit_train must be at least 1"),
        ({"val_fraction": 1.0}, r"in \[0, 1\), got 1"),
        ({"seed": -1}, "seed"),
        ({"source": "/data/digits"}, r"data\.source '/data/digits' has no effect on data\.name digits"),
        ({"drop_last": True, "batch_size": None}, r"data\.drop_last has no effect"),
        ({"width": 64}, r"data\.width 64 has no effect on data\.name digits"),
    ],
)
def test_illegal_arguments(arguments, match):
    with pytest.raises(ValueError, match=match):
        digits(**arguments)


def test_limits_are_balanced_and_upper_bounds():
    data = digits(limit_train=200, limit_test=50, val_fraction=0.1)
    assert sum(data.partition_report.sizes) == 180 and len(data.prepared.y_val) == 20
    counts = torch.bincount(data.prepared.data.y_test)
    assert counts.sum() == 50 and counts.min() >= 4
    assert len(digits(limit_test=10**6).prepared.data.y_test) == 359


def test_setup_is_idempotent_and_the_partition_a_function_of_the_seed():
    data = digits()
    data.setup("fit")
    resident = data.on_device
    data.prepare_data()
    data.setup("test")
    assert data.on_device is resident
    assert data.partition_report.sha256 == digits().partition_report.sha256
    assert data.partition_report.sha256 != digits(seed=1).partition_report.sha256


def test_histogram_matches_what_clients_yield():
    data = digits(num_clients=5)
    for k in range(5):
        labels = torch.cat([y for _, y in data.client(k).everything()])
        assert torch.bincount(labels, minlength=10).tolist() == data.partition_report.histogram[k]
        assert data.client(k).num_samples == data.partition_report.sizes[k] == len(labels)
    with pytest.raises(ValueError, match=r"client 5 is outside 0\.\.4"):
        data.client(5)


def test_augmentation_on_request_never_reaches_evaluation():
    plain, augmented = digits(augment=False), digits(augment=True)
    for a, b in zip(plain.val_dataloader(), augmented.val_dataloader(), strict=True):
        assert all(torch.equal(x, z) for (x, _), (z, _) in zip(a, b, strict=True))
    work = LocalWork(epochs=1)
    a, b = next(plain.client(0).batches(0, work)), next(augmented.client(0).batches(0, work))
    assert torch.equal(a[1], b[1]) and not torch.equal(a[0], b[0])


def test_natural_clients(small_set, tmp_path):
    arguments = {"name": "mine", "source": str(small_set), "root": str(tmp_path), "partition": Natural()}
    data = FederatedData(num_clients=4, **arguments)
    assert sum(data.partition_report.sizes) == 54 and len(data.partition_report.sizes) == 4
    with pytest.raises(ValueError, match=r"set data\.num_clients to 4"):
        FederatedData(num_clients=3, **arguments).setup()


def test_natural_clients_outlive_hold_out_and_limit(tmp_path, write_parquet):
    """Ten clients, most of one or two samples: none of them loses its last."""
    owners = [f"c{k}" for k in range(10) for _ in range(1 + 6 * (k == 0) + 3 * (k == 1))]
    for split in ("train", "test"):
        write_parquet(tmp_path / "set", split, [i % 2 for i in range(len(owners))], client_id=owners)
    arguments = {"name": "mine", "source": str(tmp_path / "set"), "root": str(tmp_path), "partition": Natural()}
    data = FederatedData(num_clients=10, val_fraction=0.4, **arguments)
    assert len(data.prepared.y_val) == 8 and sorted(data.partition_report.sizes)[:9] == [1] * 9
    data = FederatedData(num_clients=10, val_fraction=0, limit_train=10, **arguments)
    assert data.partition_report.sizes == [1] * 10
    with pytest.raises(ValueError, match=r"val_fraction 0\.5 holds 10 of 19 training samples out.*the 10 clients"):
        FederatedData(num_clients=10, val_fraction=0.5, **arguments).setup()
    with pytest.raises(ValueError, match="limit_train is 9, but each of the 10 clients"):
        FederatedData(num_clients=10, limit_train=9, **arguments).setup()


def test_a_share_that_holds_nothing_out_is_refused():
    with pytest.raises(ValueError, match=r"val_fraction 0\.0001 of 1438 training samples holds none out"):
        digits(val_fraction=0.0001).setup()


@pytest.mark.parametrize(("precision", "dtype"), [("64-true", torch.float64), ("32-true", torch.float32)])
def test_images_have_the_precision_of_the_run_outside_of_its_steps_too(precision, dtype):
    data = digits()
    trainer = pl.Trainer(accelerator="cpu", precision=precision, logger=False, enable_checkpointing=False)
    data.setup()  # as a script that looks at the data first
    trainer.datamodule = data
    data.trainer = trainer
    data.setup()
    [(x, _)] = data.client(0).everything(10**6)
    assert x.dtype == next(data.client(0).batches(0, LocalWork(steps=1)))[0].dtype == dtype
    assert all(x.dtype == dtype for loader in data.val_dataloader() for x, _ in loader)
    scaled = data.prepared.data.x_train[data.prepared.parts[0]].double() / 255
    normalise = data.prepared.data.normalise
    expected = (scaled - normalise.mean[0]) / normalise.std[0]
    assert torch.allclose(x.double(), expected, rtol=0, atol=1e-14 if dtype == torch.float64 else 1e-6)


def test_floating_data_without_test_part(monkeypatch):
    def vectors(request) -> ArraySet:
        x, y = torch.randn(50, 4, dtype=torch.float64), torch.arange(50) % 2
        return ArraySet(x, y, x[:0], y[:0], num_classes=2)

    monkeypatch.setitem(sources.LOADERS, "vectors", vectors)
    data = FederatedData(name="vectors", num_clients=5, val_fraction=0, batch_size=None, partition=IID())
    assert data.eval_names == [] and data.val_dataloader() == [] and data.input_shape == (4,)
    [(x, _)] = data.client(0).batches(0, LocalWork(steps=1))
    assert x.dtype == torch.float64 and x.shape == (10, 4)
    with pytest.raises(ValueError, match="for images only"):
        FederatedData(name="vectors", partition=IID(), augment=True).setup()


def test_root_comes_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDPM_DATA", str(tmp_path))
    assert digits().root == tmp_path
    monkeypatch.delenv("FEDPM_DATA")
    assert digits().root.name == "fedpm-lightning" and digits(root="~/x").root.is_absolute()


class Recorder(pl.LightningModule):
    """Records what the Trainer hands over."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.cohorts: list[Cohort] = []
        self.evaluated: list[tuple[int, int]] = []

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def training_step(self, batch, batch_idx):
        self.cohorts.append(batch)
        self.weight.grad = torch.ones(1)
        self.optimizers().step()

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.evaluated.append((dataloader_idx, len(batch[1])))

    def test_step(self, batch, batch_idx):
        self.evaluated.append((9, len(batch[1])))


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*")
def test_under_a_trainer(tmp_path):
    trainer = pl.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
        default_root_dir=tmp_path,
    )
    model, data = Recorder(), digits(clients_per_round=2, eval_batch_size=300)
    trainer.fit(model, datamodule=data)
    assert [c.round for c in model.cohorts] == [0, 1, 2] and trainer.global_step == 3
    assert [c.ids for c in model.cohorts] == [digits(clients_per_round=2).cohort(t).ids for t in range(3)]
    assert model.evaluated == [(0, 144), (1, 300), (1, 59)] * 3
    model.evaluated.clear()
    trainer.test(model, datamodule=data, verbose=False)
    assert model.evaluated == [(9, 300), (9, 59)]


def test_prepared_indices_are_rows_of_the_training_part():
    prepared = digits().prepared
    assert np.array_equal(np.sort(np.concatenate(prepared.parts)), np.arange(len(prepared.data.y_train)))
