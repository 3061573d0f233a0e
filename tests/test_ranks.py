"""Two real processes (gloo) give what one gives, and a run of two goes on in one."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest
import torch

from fedpm_lightning.ranks import all_states, own_clients, rank_and_size
from resume_parts import ended, forked, until

REPO = Path(__file__).resolve().parents[1]

SETTINGS = ("--data.participation", "0.5", "--model.local_epochs", "1", "--trainer.precision", "64-true")
TWO = ("--trainer.accelerator", "cpu", "--trainer.devices", "2", "--trainer.strategy", "ddp")
SPILL = ("--model.client_memory_mib", "0")  # states of clients on the disk of their rank
# SOAP's eigenvectors are free where eigenvalues coincide (digits' constant pixels): the last bit of a sum decides them.
ORDERED = {"fedpac": ("--model.reduce", "ordered")}
NETWORKS = sorted(path.stem for path in (REPO / "configs" / "method").glob("*.yaml"))
CONVEX = sorted(path.stem for path in (REPO / "configs" / "method" / "convex").glob("*.yaml"))


def experiment(name, data):
    """Return the words of `fedpm fit` for a network's method, or (convex/NAME) a convex task's."""
    if name.startswith("convex/"):
        task = ("configs/a9a.yaml", "--data.source", str(data), "--data.num_clients", "4")
        # The correction has no fixed point under sampled cohorts, and diverges on a problem as small as this.
        share = "1.0" if name.endswith("corrected") else "0.5"
        clients = ("--data.partition.clients_size", "15", "--data.participation", share)
        return ["fit", "--config", *task, "--config", f"configs/method/{name}.yaml", *clients]
    return [
        "fit",
        "--config",
        "configs/quickstart.yaml",
        "--config",
        f"configs/method/{name}.yaml",
        *SETTINGS,
        *ORDERED.get(name, ()),
    ]


def ranks(commands, folder, count=2):
    """Start `count` children that run a list of command lines in one process group; return their process ids."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count), "NODE_RANK": "0"}
    outputs = [folder / f"rank{rank}.txt" for rank in range(count)]
    return [forked(commands, output, LOCAL_RANK=str(k), **shared) for k, output in enumerate(outputs)]


def finish(children, folder):
    """Wait for all ranks and require that they succeed."""
    for rank, code in enumerate([ended(child) for child in children]):
        assert code == 0, (folder / f"rank{rank}.txt").read_text()[-3000:]


def state(folder):
    return torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)


def distance(a, b):
    """Return the greatest relative difference of two runs' weights."""
    pairs = [(a["state_dict"][k].double(), b["state_dict"][k].double()) for k in a["state_dict"]]
    return max(float((x - y).abs().max() / x.abs().max().clamp_min(1e-12)) for x, y in pairs)


def compare_two_with_one(fedpm, names, data, folder):
    """Run 4 rounds on one rank; 2 on two ranks and 2 more on one; compare weights, states, bytes."""
    words = {name: experiment(name, data) for name in names}
    places = {name: folder / f"{name.replace('/', '-')}-two" for name in names}
    commands = [[*words[n], "--rounds", "2", *TWO, *SPILL, "--run_dir", str(places[n])] for n in names]
    finish(ranks(commands, folder), folder)
    for name in names:
        one = fedpm(*words[name], "--rounds", "4", folder=f"{places[name].name}-one")
        two = fedpm(*words[name], "--rounds", "4", folder=places[name].name)
        assert one.code == two.code == 0, name
        a, b = state(one.folder), state(two.folder)
        assert distance(a, b) < 1e-10, (name, distance(a, b))
        assert a["federated"]["clients"].keys() == b["federated"]["clients"].keys()
        for key in ("comm/up_bytes", "comm/down_bytes", "clients/returned"):
            assert [row[key] for row in one.rows] == [row[key] for row in two.rows], (name, key)


def test_two_ranks_are_one_and_a_run_of_two_goes_on_in_one(fedpm, tiny_libsvm, tmp_path):
    compare_two_with_one(fedpm, ["scaffold", "fedavg"], tiny_libsvm, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("names", [NETWORKS, [f"convex/{name}" for name in CONVEX]], ids=["networks", "convex"])
def test_every_method_on_two_ranks(fedpm, names, tiny_libsvm, tmp_path):
    compare_two_with_one(fedpm, names, tiny_libsvm, tmp_path)


@pytest.mark.slow
def test_ordered_sums_have_the_bits_of_one_process(fedpm, tiny_libsvm, tmp_path):
    """In float32; with corrected steps, whose first pass is summed too."""
    methods = {
        "fedpm": (),
        "scaffold": (),
        "fedavg": ("--trainer.callbacks+=fedpm_lightning.callbacks.CoordinateMedian",),
    }
    methods["local_newton"] = ()
    words = {
        name: ["fit", "--config", "configs/quickstart.yaml", "--config", f"configs/method/{name}.yaml", "--rounds", "3",
               "--model.reduce", "ordered", *more]
        for name, more in methods.items()
    }  # fmt: skip
    words["fedpm"] += ["--model.method.correction", "gradient"]
    finish(ranks([[*w, *TWO, "--run_dir", str(tmp_path / f"{n}-two")] for n, w in words.items()], tmp_path), tmp_path)
    for name in words:
        one = fedpm(*words[name], folder=f"{name}-one")
        a, b = state(one.folder), state(tmp_path / f"{name}-two")
        assert all(torch.equal(a["state_dict"][k], b["state_dict"][k]) for k in a["state_dict"]), name


def test_ordered_sums_and_stacked_clients_exclude_each_other(quickstart, capsys):
    assert quickstart("--model.reduce", "ordered", "--model.executor", "vectorized").code == 1
    assert "model.reduce ordered needs one client after another" in capsys.readouterr().err


def test_a_rank_that_dies_ends_the_others(fedpm, tmp_path):
    fedpm("--version")  # settles the folder
    words = ["fit", "--config", "configs/quickstart.yaml", "--rounds", "100000", *TWO, "--run_dir", "run"]
    first, second = ranks([words], tmp_path)
    until((tmp_path / "run" / "metrics.csv").exists)
    os.kill(second, signal.SIGKILL)
    assert ended(second) == 137
    assert ended(first) != 0
    assert "Traceback" not in (tmp_path / "rank0.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedpm", "psgd"])
def test_diagnostics_of_two_ranks_are_those_of_one(fedpm, method):
    words = [*experiment(method, None), "--config", "configs/diagnostics.yaml", "--rounds", "2"]
    one = fedpm(*words, folder="one")
    two = type(one)(0, one.folder.parent / "two")
    finish(ranks([[*words, *TWO, "--run_dir", str(two.folder)]], one.folder.parent), one.folder.parent)
    compared = [key for key in one.rows[0] if key.startswith(("drift/", "precond/", "damping/", "clients_acc/"))]
    assert len(compared) >= 9
    for row, other in zip(one.rows, two.rows, strict=True):
        alone = {key: float(row[key]) for key in compared if row[key]}
        assert {key: float(other[key]) for key in alone} == pytest.approx(alone, rel=1e-5, abs=1e-6)


def test_one_process_is_the_identity():
    assert rank_and_size() == (0, 1)
    assert own_clients([], fixed=True) == []
    states = {3: {"c": torch.ones(2)}}
    assert all_states(states) is states


class Data:
    def __init__(self, client, num_samples):
        self.client, self.num_samples = client, num_samples


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_share_a_cohort_without_overlap(monkeypatch, fixed, ranks):
    cohort = [Data(k, n) for k, n in enumerate([50, 3, 7, 40, 11, 90, 2, 30])]
    parts = []
    for rank in range(ranks):
        monkeypatch.setattr("fedpm_lightning.ranks.rank_and_size", lambda rank=rank: (rank, ranks))
        parts.append(own_clients(cohort, fixed))
    assert sorted(d.client for part in parts for d in part) == list(range(8))
    if fixed:
        assert all(d.client % ranks == rank for rank, part in enumerate(parts) for d in part)
    else:
        loads = [sum(d.num_samples for d in part) for part in parts]
        assert max(loads) <= max(90, sum(loads) / ranks * 1.2)
