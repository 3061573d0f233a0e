"""Clients' states above the bound live on the disk, and nobody can tell from what comes back."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from fedpm_lightning.client.store import ClientStore

KIB = 1024
MAPS = Path("/proc/self/maps")
STATE_MIB = 4 / 1024  # of one state below: 1024 floats


def state(value):
    return {"c": {"weight": torch.full((1024,), float(value))}, "count": value}


def filled(store, clients):
    for round, client in enumerate(clients):
        store.put(client, state(client))
        store.commit(round)
    return store


def files(folder):
    return sorted(path.name.split("-")[0] for path in folder.glob(".client-states-*/*"))


def same(store, clients):
    states = store.state_dict()
    assert sorted(states) == sorted(set(clients))
    return all(torch.equal(s["c"]["weight"], state(k)["c"]["weight"]) and s["count"] == k for k, s in states.items())


@pytest.fixture
def store(tmp_path):
    store = ClientStore(2 * STATE_MIB)
    store.use_folder(tmp_path, 0)
    return store


def test_the_states_changed_last_stay_in_memory(store, tmp_path):
    filled(store, [0, 1, 2, 3, 0])
    assert files(tmp_path) == ["1", "2"]
    assert store.in_memory == 2 * 4 * KIB
    assert same(store, [0, 1, 2, 3])


@pytest.mark.skipif(not MAPS.is_file(), reason="only Linux lists a process's mapped files")
def test_a_state_on_the_disk_is_mapped_not_read(store, tmp_path):
    filled(store, range(4))
    folder = next(tmp_path.glob(".client-states-*"))
    mapped = {line.split()[-1] for line in MAPS.read_text().splitlines() if str(folder) in line}
    assert len(mapped) == 2


def test_what_a_client_does_with_its_state_reaches_neither_the_store_nor_the_file(store):
    filled(store, range(4))
    mine = store.get(0, dict)
    mine["count"] = 99
    store.put(0, mine)
    store.discard()
    assert store.get(0, dict)["count"] == 0


def test_a_new_state_replaces_the_file(store, tmp_path):
    filled(store, [0, 1, 2])
    held = store.state_dict()[0]["c"]["weight"]
    filled(store, [0, 1, 2])
    assert files(tmp_path) == ["0"]
    assert torch.equal(held, torch.zeros(1024))  # of the file that is gone
    assert same(store, range(3))


def test_loading_keeps_the_bound_and_copies(store, tmp_path):
    given = {k: state(k) for k in range(5)}
    store.load_state_dict(given, {k: 5 - k for k in range(5)})
    assert store.in_memory == 2 * 4 * KIB
    assert files(tmp_path) == ["2", "3", "4"]
    given[0]["c"]["weight"].zero_().add_(7)
    assert same(store, range(5))


def test_the_files_go_and_the_states_stay(store, tmp_path):
    filled(store, range(4))
    store.release()
    assert not list(tmp_path.iterdir())
    assert same(store, range(4))


def test_a_dropped_store_and_a_killed_one_leave_nothing(tmp_path):
    store = ClientStore(0)
    store.use_folder(tmp_path, 1)
    filled(store, range(2))
    other = tmp_path / ".client-states-0-left"  # of a rank that still runs
    left = tmp_path / ".client-states-1-left"
    other.mkdir(), left.mkdir()
    del store
    gc.collect()
    ClientStore(0).use_folder(tmp_path, 1)
    assert list(tmp_path.iterdir()) == [other]


def test_without_a_bound_nothing_is_written(tmp_path):
    store = ClientStore()
    store.use_folder(tmp_path, 0)
    assert same(filled(store, range(4)), range(4))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("bound", [-1.0, float("nan")])
def test_a_bound_below_zero_is_refused(bound):
    with pytest.raises(ValueError, match=r"model\.client_memory_mib must be 0 or more, or null"):
        ClientStore(bound)
