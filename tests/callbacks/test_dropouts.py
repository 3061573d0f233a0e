"""Clients that are away and clients that are slow."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

from fedpm_lightning.callbacks import Dropouts, Stragglers
from fedpm_lightning.callbacks.simulation.dropouts import SlowData
from fedpm_lightning.data import FederatedData
from fedpm_lightning.types import Cohort, LocalWork

ONE_EPOCH = ("--model.local_epochs", "1")


def callback(name, **init):
    return ("--trainer.callbacks", json.dumps([{"class_path": f"fedpm_lightning.callbacks.{name}", "init_args": init}]))


@pytest.fixture(scope="module")
def clients():
    data = FederatedData(num_clients=40)
    return [data.client(k) for k in range(40)]


def after(callback, clients, round=0, seed=0):
    cohort = Cohort(round, list(clients))
    callback.on_round_start(SimpleNamespace(cohort=cohort, federation=SimpleNamespace(seed=seed)))
    return cohort


def test_who_is_away_depends_on_seed_round_and_client_only(clients):
    away = {(r, s): after(Dropouts(0.3), clients, r, s).ids for r in range(3) for s in range(2)}
    assert len({tuple(ids) for ids in away.values()}) == 6
    backwards = after(Dropouts(0.3), clients[::-1], 0, 0).ids
    assert sorted(backwards) == away[0, 0]
    left = [len(after(Dropouts(0.3), clients, r)) for r in range(50)]
    assert sum(left) / (50 * 40) == pytest.approx(0.7, abs=0.03)  # 2,000 draws: 3 standard deviations
    assert after(Dropouts(0.0), clients).ids == list(range(40)) and after(Dropouts(1.0), clients).ids == []


def test_a_slow_client_makes_the_first_steps_of_its_round(clients):
    data = max(clients, key=lambda c: c.num_samples)
    work = LocalWork(epochs=3)
    full, slow = list(data.batches(5, work)), list(SlowData(data, 0.4).batches(5, work))
    assert len(slow) == round(0.4 * len(full)) == SlowData(data, 0.4).steps(work) > 0
    assert all(torch.equal(a[0], b[0]) for a, b in zip(slow, full, strict=False))
    assert len(list(SlowData(data, 0.0).batches(5, work))) == 1, "at least one step"
    empty = SimpleNamespace(steps=lambda work: 0, batches=lambda round, work: iter(()))
    assert list(SlowData(empty, 0.5).batches(0, work)) == []


def test_stragglers_are_drawn_apart_from_dropouts(clients):
    slow = [c.client for c in after(Stragglers(0.5), clients).clients if isinstance(c, SlowData)]
    present = after(Dropouts(0.5), clients).ids
    assert 10 < len(slow) < 30 and set(slow) != set(range(40)) - set(present)


@pytest.mark.parametrize("bad", [-0.1, 1.1, float("nan")])
def test_rates_out_of_range_are_refused(bad):
    for make in (Dropouts, Stragglers, lambda x: Stragglers(0.5, x)):
        with pytest.raises(ValueError, match=r"must be in \[0, 1\]"):
            make(bad)


def test_every_method_loses_the_same_clients_and_the_row_counts_them(quickstart):
    words = (*ONE_EPOCH, "--rounds", "3", *callback("Dropouts", rate=0.4))
    pm = quickstart(*words, folder="pm")
    scaffold = quickstart(*words, "--config", "configs/method/scaffold.yaml", *callback("Dropouts", rate=0.4))
    for run in (pm, scaffold):
        assert run.code == 0
        assert all(float(r["clients/returned"]) + float(r["clients/dropped"]) == 10 for r in run.rows)
    returned = [row["clients/returned"] for row in pm.rows]
    assert returned == [row["clients/returned"] for row in scaffold.rows]
    assert set(returned) != {"10"}


def test_stragglers_train_less_and_still_return(quickstart):
    words = ("--config", "configs/method/fedavg.yaml", *ONE_EPOCH, "--rounds", "1")
    fast, slow = quickstart(*words, folder="fast"), quickstart(*words, *callback("Stragglers", rate=1.0))
    assert slow.code == 0 and float(slow.rows[0]["clients/returned"]) == 10
    assert float(slow.rows[0]["test/loss"]) > float(fast.rows[0]["test/loss"])
