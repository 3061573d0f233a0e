from __future__ import annotations

import json

import pytest

from fedpm_lightning.report.records import RunError
from fedpm_lightning.report.run import load_run
from fedpm_lightning.report.runs import by_setting, find_runs
from fedpm_lightning.report.tables.compare import main as compare


def test_runs_are_found_at_any_depth_each_once(tmp_path, write_run):
    a = write_run(tmp_path / "x" / "a")
    write_run(tmp_path / "x" / "y" / "b", seed=1)
    write_run(a / "checkpoints", seed=2)  # inside a run: not a run of its own
    runs = find_runs([tmp_path, a])
    assert [run.path.name for run in runs] == ["a", "b"]
    assert runs[0].history.rounds_done == 2 and runs[0].history.initial == {"val/acc": 0.1}
    assert "config" not in runs[0].summary


def test_only_the_seed_and_the_folder_may_differ_within_a_setting(tmp_path, write_run):
    paths = [write_run(tmp_path / str(seed), seed=seed) for seed in range(3)]
    other = write_run(tmp_path / "lr", method={"lr": 0.1})
    newer = write_run(tmp_path / "new", versions={"fedpm": "0.2.0"})
    longer = write_run(tmp_path / "long", acc=(0.1, 0.2, 0.3))
    groups = by_setting(find_runs([*paths, other, newer, longer]))
    assert sorted(len(group) for group in groups.values()) == [1, 1, 1, 3]


def test_diagnostics_are_no_setting(tmp_path, write_run):
    drift = {"class_path": "fedpm_lightning.callbacks.ClientDrift", "init_args": {"every": 2}}
    attack = {"class_path": "fedpm_lightning.callbacks.SignFlip", "init_args": {"fraction": 0.1}}

    def with_callbacks(seed, *callbacks):
        folder = write_run(tmp_path / f"{seed}", seed=seed)
        summary = json.loads((folder / "summary.json").read_text())
        summary["config"]["trainer"]["callbacks"] = list(callbacks)
        (folder / "summary.json").write_text(json.dumps(summary))
        return folder

    folders = [write_run(tmp_path / "plain", seed=9), with_callbacks(0, drift)]
    folders += [with_callbacks(1, attack), with_callbacks(2, drift, attack)]
    groups = by_setting(find_runs(folders)).values()
    assert sorted([run.path.name for run in group] for group in groups) == [["0", "plain"], ["1", "2"]]


def test_columns_name_the_split(tmp_path, write_run):
    iid = load_run(write_run(tmp_path / "iid", alpha=None, partition="IID"))
    fine = load_run(write_run(tmp_path / "d"))
    classes = load_run(write_run(tmp_path / "c", partition="DirichletOverClasses"))
    assert [run.column.heterogeneity.written() for run in (iid, fine, classes)] == [
        "IID",
        "alpha=0.1",
        "DirichletOverClasses alpha=0.1",
    ]


def test_configuration_beside_an_older_summary(tmp_path, write_run):
    folder = write_run(tmp_path / "a")
    summary = json.loads((folder / "summary.json").read_text())
    del summary["config"]
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "config.yaml").write_text("model: {lr: 0.5}\n")
    assert load_run(folder).config == {"model": {"lr": 0.5}}


def test_errors_name_the_folder_and_the_way_out(tmp_path):
    with pytest.raises(RunError, match=r"holds no run.*give a run's folder"):
        find_runs([tmp_path])
    with pytest.raises(RunError, match="nowhere is not a folder"):
        find_runs([tmp_path / "nowhere"])
    (tmp_path / "summary.json").write_text("{")
    with pytest.raises(RunError, match="not JSON"):
        load_run(tmp_path)


def _damage(folder, kind):
    """Spoil one run's files."""
    summary, metrics = folder / "summary.json", folder / "metrics.csv"
    found = json.loads(summary.read_text())
    values = {
        "seed": {"seed": "zero"},
        "rounds": {"rounds": True},
        "initial": {"initial": [1]},
        "figure": {"initial": {"a": "b"}},
        "config": {"config": "x"},
        "branch": {"config": {"data": "x"}},
        "resumes": {"resumes": [3]},
        "alpha": {"alpha": {}},
        "short": {"rounds_done": 9},
    }
    if kind in values:
        summary.write_text(json.dumps(found | values[kind]))
    elif kind == "empty":
        summary.write_text("")
    elif kind == "list":
        summary.write_text("[]")
    elif kind == "bytes":
        metrics.write_bytes(b"round,test/acc\n1,\xff\xfe\n")
    elif kind == "no table":
        metrics.write_text("round,test/acc\n1," + "9" * 200_000 + "\n")
    elif kind == "no rounds":
        metrics.write_text("a,b\n1,2\n")
    elif kind == "yaml":
        del found["config"]
        summary.write_text(json.dumps(found))
        (folder / "config.yaml").write_text("a: [")


KINDS = ["seed", "rounds", "initial", "figure", "config", "branch", "resumes", "alpha", "short"]


@pytest.mark.parametrize("kind", [*KINDS, "empty", "list", "bytes", "no table", "no rounds", "yaml"])
def test_a_bad_folder_costs_one_line_and_not_the_table(tmp_path, write_run, capsys, kind):
    for seed in (0, 1):
        write_run(tmp_path / "runs" / f"good{seed}", seed=seed)
    _damage(write_run(tmp_path / "runs" / "spoilt", seed=2), kind)
    assert compare([str(tmp_path / "runs")]) == 0
    shown, told = capsys.readouterr()
    assert "45.00 ± 0.00 (2)" in shown or "50.00 ± 0.00 (2)" in shown
    assert told.count("\n") == 1 and "spoilt" in told and "skipped" in told
    assert [run.seed for run in find_runs([tmp_path / "runs"], lambda _: None)] == [0, 1]


def test_rounds_that_are_no_numbers_are_no_rows(tmp_path, write_run):
    folder = write_run(tmp_path / "a")
    (folder / "metrics.csv").write_text("round,test/acc\n1,0.5\nnan,0.6\ninf,0.7\n2,0.8\n")
    assert [row["round"] for row in load_run(folder).history.rows] == [1, 2]


def test_a_bad_wandb_file_costs_one_line(tmp_path, write_run, capsys):
    write_run(tmp_path / "runs" / "good")
    (tmp_path / "runs" / "run-x.wandb").write_bytes(b"not W&B's")
    assert [run.path.name for run in find_runs([tmp_path / "runs"])] == ["good"]
    assert "run-x.wandb is not a W&B file" in capsys.readouterr().err
