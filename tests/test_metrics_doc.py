"""docs/metrics.md against runs: every key has a row, and what the rows say is recomputed."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import pkgutil
import re

import pytest

from fedpm_lightning import callbacks as package
from fedpm_lightning.callbacks.base import Aggregation, FederatedCallback
from fedpm_lightning.report.metrics import find_metric
from metric_probe import Probe

SMALL = ("--data.limit_train", "300", "--model.local_epochs", "1", "--data.eval_batch_size", "100")


@pytest.fixture
def page(repo):
    return (repo / "docs" / "metrics.md").read_text()


def keys_of(text: str, head: str) -> set[str]:
    """The names in the first column of the table under a heading."""
    section = text.split(f"## {head}\n")[1].split("\n## ")[0]
    firsts = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {name for first in firsts for name in re.findall(r"`([^`]+)`", first)}


def columns_of(run) -> set[str]:
    """The columns of a run; a layer's own name stands as LAYER."""
    return {re.sub(r"^(precond/(?:drift|condition))/.+", r"\1/LAYER", key) for row in run.rows for key in row}


def figures(run) -> list[dict[str, float]]:
    return [{key: float(value) for key, value in row.items() if value} for row in run.rows]


@pytest.mark.parametrize("weighting", ["size", "uniform"])
def test_what_the_rows_say_is_recomputed(quickstart, page, weighting):
    Probe.rounds.clear()
    # A rate and a seed with which the accuracy falls again: best and final are different rounds.
    words = ["--config", "configs/method/fedavg.yaml", "--model.method.lr", "0.5", "--seed_everything", "2"]
    words += ["--model.weighting", weighting, "--rounds", "3"]
    run = quickstart(*SMALL, *words, "--data.participation", "0.5", "--trainer.callbacks", "metric_probe.Probe")
    rows, probed = figures(run), Probe.rounds
    assert run.code == 0 and len(rows) == len(probed) == 3
    up = down = total = 0.0
    for row, seen in zip(rows, probed, strict=True):
        weights = [n if weighting == "size" else 1 for n, _, _ in seen["clients"]]
        losses = [loss for _, loss, _ in seen["clients"]]
        assert len({n for n, _, _ in seen["clients"]}) > 1, "equal clients would hide the weighting"
        mean = sum(w * loss for w, loss in zip(weights, losses, strict=True)) / sum(weights)
        assert row["train/loss"] == pytest.approx(mean, rel=1e-12)
        for split in ("val", "test"):
            assert row[f"{split}/acc"] == pytest.approx(seen[split]["acc"], abs=1e-12), "pooled over samples"
            assert row[f"{split}/loss"] == pytest.approx(seen[split]["loss"], rel=1e-5)
        assert seen["test"]["n"] % 100 and seen["test"]["batches"] > 1, "a last batch of another size"
        up += sum(sent for _, _, sent in seen["clients"])
        down += seen["theta_bytes"] * len(seen["clients"])
        total += row["time/round_s"] + row["time/eval_s"]
        assert (row["comm/up_bytes"], row["comm/down_bytes"]) == (up, down), "cumulative, fp32 as sent"
        assert row["time/total_s"] == pytest.approx(total), "cumulative"
        assert row["clients/returned"] == len(seen["clients"])
        assert row["clients/returned"] + row["clients/dropped"] == seen["cohort"] == 5
    assert [row["round"] for row in rows] == [1, 2, 3]
    final_and_best(run, rows)
    assert set(run.summary) == keys_of(page, "Keys of summary.json")
    assert set().union(*rows) <= keys_of(page, "Columns of metrics.csv")


def final_and_best(run, rows):
    """`final` is the last row, `best` the whole row of the best validation accuracy, totals those of the end."""
    summary = run.summary
    best = max(rows, key=lambda row: (row["val/acc"], -row["round"]))
    assert best["round"] < 3, "or the run cannot tell best from final"
    assert summary["final"] == rows[-1] and summary["best"] == best and summary["monitor"]["key"] == "val/acc"
    assert summary["round_of_best"] == best["round"] and summary["bytes_up"] == rows[-1]["comm/up_bytes"]
    assert summary["bytes_down"] == rows[-1]["comm/down_bytes"] and summary["seconds"] == rows[-1]["time/total_s"]
    assert "comm/up_bytes" not in summary["initial"] and summary["initial"]["test/acc"] < 0.3


def test_a_convex_run_has_no_key_without_a_row(fedpm, tiny_libsvm, page):
    words = ["--config", "configs/a9a.yaml", "--config", "configs/method/convex/fedpm.yaml", "--rounds", "1"]
    data = ["--data.source", str(tiny_libsvm), "--data.num_clients", "4", "--data.partition.clients_size", "15"]
    run = fedpm("fit", *words, *data)
    assert run.code == 0 and {"opt/gap", "opt/distance", "opt/grad_norm"} <= set(run.rows[0])
    assert set(run.rows[0]) <= keys_of(page, "Columns of metrics.csv")
    assert set(run.summary) <= keys_of(page, "Keys of summary.json")


def test_what_a_text_is_measured_by_has_a_row_and_a_direction(page):
    """The run itself is in tests/test_configs.py."""
    names = {"val/perplexity", "test/perplexity"}
    assert names <= keys_of(page, "Columns of metrics.csv") and {find_metric(name).better for name in names} == {"min"}


def test_a_run_with_faults_that_diverges_has_no_key_without_a_row(quickstart, page):
    faults = "fedpm_lightning.callbacks"
    words = ["--config", "configs/method/fedavg.yaml", "--model.method.lr", "1e20", "--rounds", "2"]
    run = quickstart(*SMALL, *words, "--trainer.callbacks", f"{faults}.Dropouts", "--trainer.callbacks.rate", "0.3")
    assert run.code == 3 and run.rows[-1]["diverged"] == "1"
    assert set(run.rows[-1]) <= keys_of(page, "Columns of metrics.csv")
    assert set(run.summary) <= keys_of(page, "Keys of summary.json") and run.summary["diverged"] is True


FRAME = {
    "PartitionPicture",
    "Communication",
    "Timing",
    "GracefulStop",
    "RoundProgress",
    "RunCheckpoints",
    "RunFiles",
    "WandbRun",
}
OWN_RUN = {"Optimum"}  # of the convex run above
ARGUMENTS = {"Dropouts": {"rate": 0.2}, "Stragglers": {"rate": 0.2}, "SignFlip": {"clients": [0]}}
ARGUMENTS |= {"LabelFlip": {"clients": [1]}}


def optional_callbacks() -> dict[str, str]:
    """Name -> class path of every callback of the package that a user may add; aggregations take turns, so none."""
    found: dict[str, str] = {}
    for entry in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        module = importlib.import_module(entry.name)
        for name, one in inspect.getmembers(module, inspect.isclass):
            mine = one.__module__ == module.__name__ and issubclass(one, FederatedCallback)
            base = inspect.isabstract(one) or one is FederatedCallback or bool(one.__subclasses__())
            if mine and not base and not issubclass(one, Aggregation) and name not in FRAME | OWN_RUN:
                found[name] = f"{module.__name__}.{name}"
    return found


def test_a_run_of_all_callbacks_has_no_key_without_a_row(quickstart, page):
    names = optional_callbacks()
    assert set(ARGUMENTS) <= set(names)
    entries = [{"class_path": path, "init_args": ARGUMENTS.get(name, {})} for name, path in names.items()]
    run = quickstart(*SMALL, "--rounds", "1", "--trainer.callbacks", json.dumps(entries))
    assert run.code == 0
    assert columns_of(run) <= keys_of(page, "Columns of metrics.csv")
    assert {"precond/drift/LAYER", "drift/norm_max", "damping/raised", "clients_acc/std"} <= columns_of(run)
    assert set(run.summary) <= keys_of(page, "Keys of summary.json")


def test_every_name_that_the_code_records_has_a_row(repo, page):
    """Also those that none of the runs above happens to write."""
    recorded: set[str] = set()
    for file in sorted((repo / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in {"record", "_record"}:
                recorded |= {str(one.value) for one in node.args if isinstance(one, ast.Constant)}
    recorded = {name for name in recorded if "/" in name}
    assert {"train/loss", "comm/up_bytes", "opt/gap", "time/eval_s"} <= recorded
    documented = keys_of(page, "Columns of metrics.csv")
    assert recorded <= documented, f"no row in docs/metrics.md: {sorted(recorded - documented)}"
