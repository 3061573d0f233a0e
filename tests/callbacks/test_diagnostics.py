"""Every figure of the diagnostics against a direct recomputation from what the clients uploaded."""

from __future__ import annotations

import csv
import itertools
import json
import logging
import math

import numpy as np
import pytest
import torch

from diagnostics_parts import Recorder
from fedpm_lightning.callbacks import ClientAccuracy, ClientDrift
from fedpm_lightning.callbacks.metrics.client_accuracy import client_accuracies, summary
from fedpm_lightning.curvature.matrices.damping import DampingWatch
from fedpm_lightning.curvature.matrices.preconditioner import DensePreconditioner
from fedpm_lightning.curvature.matrices.woodbury import LowRankPreconditioner
from fedpm_lightning.data import Dirichlet
from fedpm_lightning.data.federated import FederatedData
from fedpm_lightning.models import MLP
from fedpm_lightning.stopwatch import Stopwatch
from resume_parts import broken, until
from wandb_records import flat, records

SHORT = ("--model.local_epochs", "1", "--rounds", "2")
ALL = ("--config", "configs/diagnostics.yaml")
GROUPS = ("drift/", "precond/", "damping/", "clients_acc/")


def callbacks(*entries):
    chosen = [{"class_path": c if "." in c else f"fedpm_lightning.callbacks.{c}", "init_args": i} for c, i in entries]
    return ("--trainer.callbacks", json.dumps(chosen))


DISTURBED = (
    ("SignFlip", {"clients": [2, 5], "scale": 2.0}),
    ("Dropouts", {"rate": 0.2}),
    ("diagnostics_parts.Lossy", {}),
    ("diagnostics_parts.Recorder", {}),
)
FIGURES = (
    ("ClientDrift", {}),
    ("PreconditionerDrift", {}),
    ("ConditionNumber", {"every": 2}),
    ("Damping", {}),
    ("ClientAccuracy", {"table": True}),
    ("TimeShares", {}),
)


@pytest.fixture(scope="module")
def corrected():
    """FedPM with a first pass over the cohort (its messages are no updates), here and there dense and low-rank."""
    unaligned = ("--model.method.preconditioner.align", "0")
    return ("--model.method.correction", "gradient", "--model.method.mix_damping", "0.1", *unaligned, *SHORT)


@pytest.fixture
def disturbed(quickstart, corrected):
    """A run under attack, dropouts and a lossy channel, with all figures; (run, rounds as the witness saw them)."""
    run = quickstart(*corrected, *callbacks(*DISTURBED, *FIGURES))
    assert run.code == 0
    return run, list(Recorder.seen)


def cosines(u):
    units = u / np.linalg.norm(u, axis=1, keepdims=True)
    return [a @ b for a, b in itertools.combinations(units, 2)]


def check_drift(row, seen, length="norm", directions=False):
    u = seen.moves(directions).numpy()
    norms = np.linalg.norm(u, axis=1)
    assert float(row[f"drift/{length}_mean"]) == pytest.approx(norms.mean(), rel=1e-12)
    assert float(row[f"drift/{length}_max"]) == pytest.approx(norms.max(), rel=1e-12)
    assert float(row["drift/cosine"]) == pytest.approx(np.mean(cosines(u[norms > 0])), abs=1e-12)


def check_preconditioners(row, seen, condition):
    w = np.array(seen.weights)
    spread = size = 0.0
    for layer in seen.P[0]:
        P = np.stack([P_i[layer].dense(torch.float64).numpy() for P_i in seen.P])
        mean = np.einsum("i,ijk->jk", w, P) / w.sum()
        square = (w * np.linalg.norm(P - mean, axis=(1, 2)) ** 2).sum() / w.sum()
        drift = math.sqrt(square) / np.linalg.norm(mean)
        assert 0.1 < drift < 10
        assert float(row[f"precond/drift/{layer}"]) == pytest.approx(drift, rel=1e-10)
        spread, size = spread + square, size + np.linalg.norm(mean) ** 2
        if condition:
            assert float(row[f"precond/condition/{layer}"]) == pytest.approx(np.linalg.cond(mean), rel=1e-8)
        else:
            assert row[f"precond/condition/{layer}"] == ""
    assert float(row["precond/drift"]) == pytest.approx(math.sqrt(spread / size), rel=1e-10)


def check_client_accuracy(run):
    """Sample by sample from the last checkpoint: the mean over clients of what each would see."""
    net = MLP(64, [128, 128], 10)
    saved = torch.load(run.folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    net.load_state_dict({k.removeprefix("net."): v for k, v in saved.items() if k.startswith("net.")})
    data = FederatedData(name="digits", num_clients=10, partition=Dirichlet(alpha=0.1), seed=0)
    ((x, y),) = list(data.on_device.loaders["test"])
    right = (net(x).argmax(-1) == y).double().numpy()
    by_client = []
    for k in range(10):
        labels = torch.cat([targets for _, targets in data.client(k).everything()]).numpy()
        by_client.append(np.mean([right[y.numpy() == label].mean() for label in labels]))
    row = run.rows[-1]
    assert float(row["clients_acc/mean"]) == pytest.approx(np.mean(by_client), rel=1e-12)
    assert float(row["clients_acc/std"]) == pytest.approx(np.std(by_client), rel=1e-9)
    assert float(row["clients_acc/min"]) == float(row["clients_acc/worst_tenth"]) == pytest.approx(min(by_client))
    with (run.folder / "clients_acc.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [int(line["client"]) for line in table] == list(range(10)) and {line["round"] for line in table} == {"2"}
    assert [float(line["acc"]) for line in table] == pytest.approx(by_client, rel=1e-12)
    assert [int(line["samples"]) for line in table] == data.partition_report.sizes


def test_every_figure_under_attack_dropouts_and_loss(disturbed):
    run, rounds = disturbed
    forms = {type(P) for seen in rounds for P_i in seen.P for P in P_i.values()}
    assert forms == {DensePreconditioner, LowRankPreconditioner}
    assert any((seen.moves() == 0).all(1).any() for seen in rounds), "a client that does not move has no direction"
    for number, (row, seen) in enumerate(zip(run.rows, rounds, strict=True), 1):
        assert 3 < len(seen.params) < 10 and float(row["clients/returned"]) == len(seen.params)
        check_drift(row, seen)
        check_preconditioners(row, seen, condition=number == 2)
        shares = [float(row[f"time/{part}_share"]) for part in ("local", "factors", "mixing", "eval")]
        assert sum(shares) == pytest.approx(1) and min(shares) > 0
        parts = sum(float(row[f"time/{part}_s"]) for part in ("local", "factors", "mixing"))
        assert parts == pytest.approx(float(row["time/round_s"]), rel=0.01)
    check_client_accuracy(run)


def test_diagnostics_change_nothing_and_leave_nothing_behind(disturbed, quickstart, corrected):
    run, _ = disturbed
    plain = quickstart(*corrected, *callbacks(*DISTURBED[:3]), folder="plain")
    theta, alone = (
        torch.load(r.folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"] for r in (run, plain)
    )
    assert all(torch.equal(theta[name], alone[name]) for name in alone)
    for with_them, without in zip(run.rows, plain.rows, strict=True):
        shared = [key for key in without if not key.startswith("time/")]
        assert [with_them[key] for key in shared] == [without[key] for key in shared]
        assert not any(key.startswith(GROUPS) for key in without)
    assert DampingWatch.running is None and Stopwatch.running is None


def test_a_direction_is_no_distance(quickstart, capsys):
    figures = (("ClientDrift", {}), ("PreconditionerDrift", {}), ("Damping", {}), ("CoordinateMedian", {}))
    psgd = ("--config", "configs/method/psgd.yaml", "--rounds", "2")
    run = quickstart(*psgd, *callbacks(("diagnostics_parts.Recorder", {}), *figures))
    assert run.code == 0
    for row, seen in zip(run.rows, Recorder.seen, strict=True):
        check_drift(row, seen, "direction", directions=True)
        assert "drift/norm_mean" not in row and not any(key.startswith("precond/") for key in row)
        assert row["damping/factorised"] == row["damping/raised"] == "0" and "damping/delta_max" not in row
    assert capsys.readouterr().out.count("PreconditionerDrift: PSGD mixes no preconditioners") == 1


def test_quantised_uploads_have_no_vector_to_measure(fedpm, tiny_libsvm, capsys):
    run = fedpm(
        "fit", "--config", "configs/a9a.yaml", "--config", "configs/method/convex/fednew.yaml", "--data.name", "libsvm",
        "--data.source", str(tiny_libsvm), "--data.num_clients", "4", "--data.partition.clients_size", "15",
        "--model.net.in_features", "20", "--rounds", "2", "--model.method.bits", "3", *callbacks(("ClientDrift", {})),
    )  # fmt: skip
    assert run.code == 0 and not any(key.startswith("drift/") for key in run.rows[0])
    assert capsys.readouterr().out.count("ClientDrift: FedNew uploads no parameters in the clear") == 1


def test_damping_counts_what_the_log_tells(quickstart, caplog):
    """Without damping every low-rank factor fails, and so does the server's sum of two clients."""
    method = ("--model.method.preconditioner.damping", "0", "--model.method.preconditioner.damping_mode", "absolute")
    mixing = ("--model.method.mix_damping", "0", "--model.method.lr", "0.01", "--rounds", "1")
    few = ("--data.clients_per_round", "2", "--model.local_epochs", "null", "--model.local_steps", "1")
    with caplog.at_level(logging.WARNING, logger="fedpm_lightning.curvature.matrices.damping"):
        run = quickstart(*method, *mixing, *few, *callbacks(("Damping", {})))
    told = [r.args for r in caplog.records if r.name == "fedpm_lightning.curvature.matrices.damping"]
    row = {key: float(value) for key, value in run.rows[0].items() if value}
    failed = [layer for layer, used, _ in told if used == 0]
    assert row["damping/factorised"] == 2 * 3 and row["damping/raised_server"] > 0
    assert row["damping/raised"] + row["damping/raised_server"] == len(failed)
    assert row["damping/delta_max"] == pytest.approx(max(delta for *_, delta in told[:6]), rel=1e-6)


def test_a_resumed_run_goes_on_with_the_same_figures(quickstart):
    words = ("--config", "configs/method/fedavg.yaml", "--model.local_epochs", "1", "--rounds", "3", *ALL)
    whole = quickstart(*words, folder="whole")
    assert quickstart(*words, *broken(3, "raise"), folder="cut").code == 1
    before = float(rows(whole.folder.parent / "cut")[-1]["time/total_s"])
    cut = quickstart(*words, folder="cut")
    for one, other in zip(whole.rows, cut.rows, strict=True):
        assert {k: v for k, v in one.items() if "time" not in k} == {k: v for k, v in other.items() if "time" not in k}
    assert float(cut.rows[-1]["time/total_s"]) > before


@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning")
def test_wandb_gets_a_histogram_in_the_row_of_its_round(quickstart, monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = ("--trainer.logger", "WandbLogger", "--trainer.logger.offline", "true")
    run = quickstart("--config", "configs/method/fedavg.yaml", *SHORT, *logger, *callbacks(("ClientAccuracy", {})))
    (file,) = run.folder.glob("wandb/offline-run-*/*.wandb")
    until(lambda: any(record.HasField("exit") for record in records(file)))
    history = [flat(record.history.item) for record in records(file) if record.HasField("history")]
    found = [row for row in history if "clients_acc/histogram/values" in row]
    assert [row["round"] for row in found] == [1, 2] and all("test/acc" in row for row in found)
    assert sum(found[0]["clients_acc/histogram/values"]) == 10
    assert found[0]["clients_acc/histogram/bins"] == pytest.approx(np.linspace(0, 1, 21)), "alike in every round"
    assert not (run.folder / "clients_acc.csv").exists(), "the table is written on demand"


def rows(folder):
    with (folder / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def test_accuracy_by_label_mix():
    counts = torch.tensor([[10.0, 5.0, 0.0], [5.0, 5.0, 0.0]], dtype=torch.float64)  # class 2 is not in the split
    histogram = torch.tensor([[4.0, 0, 0], [1, 3, 9], [0, 0, 7], [0, 0, 0]], dtype=torch.float64)
    accuracies = client_accuracies(counts, histogram)
    assert accuracies[:2].tolist() == [0.5, 0.25 * 0.5 + 0.75] and accuracies[2:].isnan().all()


def test_the_worst_tenth_is_rounded_up():
    figures = summary(torch.arange(25, dtype=torch.float64) / 100)
    assert figures["worst_tenth"] == pytest.approx((0.0 + 0.01 + 0.02) / 3) and figures["min"] == 0


def test_errors_name_the_range():
    with pytest.raises(ValueError, match="every must be a finite number of at least 1, got 0"):
        ClientDrift(every=0)
    with pytest.raises(ValueError, match="split must be test or val, got 'train'"):
        ClientAccuracy(split="train")
