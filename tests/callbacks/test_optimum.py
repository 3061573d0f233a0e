"""The Optimum callback: theta*, the figures of every round, what it decides, and when it refuses."""

from __future__ import annotations

import pytest
import torch

from convex import logistic_clients, minimiser, real_file

BASE = ("fit", "--config", "configs/a9a.yaml", "--data.num_clients", "4", "--data.partition.clients_size", "30")


@pytest.fixture
def convex_run(fedpm, tmp_path):
    """`fedpm fit` on four generated clients of 30 rows, lambda 0.01."""
    clients = logistic_clients(4, 30, 6)
    lines = []
    for c in clients:
        for x, y in zip(c.x[:30].tolist(), c.y[:30].tolist(), strict=True):
            lines.append(f"{y} " + " ".join(f"{j}:{value!r}" for j, value in enumerate(x, 1)))
    (tmp_path / "data").write_text("\n".join(lines))
    source = ("--data.name", "libsvm", "--data.source", str(tmp_path / "data"), "--model.net.in_features", "6")

    def run(*words, folder="run"):
        return fedpm(*BASE, *source, "--model.l2", "0.01", "--rounds", "7", *words, folder=folder)

    for c in clients:
        c.x, c.y = c.x[:30], c.y[:30]
    return run, clients


def column(run, key):
    return [float(row[key]) for row in run.rows]


def test_the_figures_are_those_of_the_pooled_problem(convex_run):
    start, clients = convex_run
    optimum = minimiser(clients, l2=0.01)
    run = start()
    assert run.code == 0
    assert run.summary["initial"]["opt/distance"] == pytest.approx(float(optimum.norm()), rel=1e-12)
    X, y = torch.cat([c.x for c in clients]), torch.cat([c.y for c in clients]).double()
    lowest = float(
        torch.nn.functional.binary_cross_entropy_with_logits(X @ optimum, y) + 0.005 * optimum.square().sum()
    )
    assert run.summary["initial"]["opt/gap"] == pytest.approx(0.6931471805599453 - lowest, rel=1e-12)
    assert run.summary["initial"]["opt/grad_norm"] == pytest.approx(float((X.T @ (0.5 - y) / len(y)).norm()), rel=1e-12)
    distances = column(run, "opt/distance")
    assert distances[0] > 1e-2 and distances[-1] < 1e-12
    assert column(run, "opt/grad_norm")[-1] < 1e-13 and abs(column(run, "opt/gap")[-1]) < 1e-15


def test_the_gap_decides_which_round_is_best(convex_run):
    run = convex_run[0]("--model.method.preconditioner", "Diagonal")
    assert run.code == 0 and run.summary["monitor"]["key"] == "opt/gap"
    gaps = column(run, "opt/gap")
    assert run.summary["round_of_best"] == 1 + gaps.index(min(gaps))
    best = torch.load(run.folder / "checkpoints" / "best.ckpt", weights_only=True)
    assert best["epoch"] == gaps.index(min(gaps))


def test_a_checkpoint_does_not_carry_the_optimum_and_resumes_on_the_same_path(convex_run):
    start, _ = convex_run
    whole, _ = start("--rounds", "4"), start("--rounds", "2", folder="half")
    last = start("--rounds", "4", "--ckpt_path", "half/checkpoints/last.ckpt", folder="half")
    assert column(last, "opt/distance") == column(whole, "opt/distance")
    assert last.summary["initial"] == whole.summary["initial"]


def test_a_run_that_swings_away_stops_as_diverged(convex_run):
    run = convex_run[0]("--model.method.lr", "200")
    assert run.code == 3 and run.summary["diverged"]
    assert "times the objective at zero" in run.summary["error"]


def test_a_task_without_an_optimum_is_refused(fedpm, tmp_path, capsys):
    (tmp_path / "data").write_text("-1 1:-1\n+1 1:1\n" * 60)
    words = ("--data.name", "libsvm", "--data.source", str(tmp_path / "data"), "--model.net.in_features", "1")
    run = fedpm(*BASE, *words, "--model.l2", "0", "--rounds", "1")
    assert run.code == 1 and "the Optimum callback" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rounds", "minimum", "norm", "last"),
    [("a9a", 7, 0.3333472060757055, 3.9880848508, 5.5e-11), ("w8a", 8, 0.1834730582750562, 6.9081252499, 1.8e-9)],
)
def test_the_real_tasks(fedpm, capsys, name, rounds, minimum, norm, last):
    source = str(real_file(name))
    run = fedpm("fit", "--config", f"configs/{name}.yaml", "--data.source", source, "--rounds", str(rounds))
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("optimum"))
    found = [float(word) for word in line.replace(",", "").split() if word[0].isdigit()]
    assert found == pytest.approx([minimum, norm], abs=1e-9)
    assert column(run, "opt/distance")[-1] <= 1.05 * last
