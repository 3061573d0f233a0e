"""`fedpm report`: the page is built with W&B's own library, and what would be sent is read back; no server is asked."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedpm_lightning.cli import main
from fedpm_lightning.report.partitions.heterogeneity import heterogeneity
from fedpm_lightning.report.runs import find_runs
from fedpm_lightning.report.taxonomy import colour_and_marker
from fedpm_lightning.report.weights_and_biases.panels import SECTIONS, Bar, Curve, sections_for
from fedpm_lightning.report.weights_and_biases.record import record_of
from fedpm_lightning.report.weights_and_biases.scope import group_name, scope_of, scope_of_records

DOCS = Path(__file__).resolve().parents[2] / "docs"
X_OF = {"rounds": "round", "megabytes": "comm/up_bytes", "seconds": "time/total_s"}


@pytest.fixture
def runs(write_run, tmp_path):
    """Two methods, two alphas, two seeds, as folders."""
    for label in ("FedAvg", "FedPM"):
        for alpha in (0.1, 1.0):
            for seed in (0, 1):
                name = f"{label}-{alpha}-{seed}"
                write_run(tmp_path / "runs" / name, label, seed, alpha=alpha, heterogeneity={"js_mean": 0.4})
    return tmp_path / "runs"


@pytest.fixture
def spec(capsys):
    """Type a dry run, and return what it prints as JSON."""

    def read(*words):
        capsys.readouterr()
        assert main(["report", "--wandb", "me/project", "--dry-run", *map(str, words)]) == 0
        return json.loads(capsys.readouterr().out)

    return read


def grids(page):
    return [block["metadata"] for block in page["spec"]["blocks"] if block["type"] == "panel-grid"]


def headings(page, level):
    blocks = [block for block in page["spec"]["blocks"] if block["type"] == "heading" and block["level"] == level]
    return [block["children"][0]["text"] for block in blocks]


def panels_of(page):
    return [panel for grid in grids(page) for panel in grid["panelBankSectionConfig"]["panels"]]


def conditions(run_set):
    return [(entry["key"]["name"], entry["op"], entry["value"]) for entry in run_set["filters"]["filters"]]


def curves(panels):
    found = [panel["config"] for panel in panels if panel["viewType"] == "Run History Line Plot"]
    return [(config["metrics"], config["xAxis"]) for config in found]


def test_a_report_has_a_run_set_for_each_data_set_and_split(spec, runs):
    page = spec(runs)
    assert page["project"] == {"name": "project", "entityName": "me"}
    assert page["displayName"] == "Comparison of project"
    assert headings(page, 1) == ["digits, α = 0.1", "digits, α = 1"]
    assert headings(page, 2) == ["Final and best", "Accuracy", "Loss", "Heterogeneity"] * 2
    for number, grid in enumerate(grids(page)):
        (run_set,) = grid["runSets"]
        # The tag as a run writes it, with the one = that it has.
        tag = "alpha=0.1" if number < 4 else "alpha=1.0"
        assert conditions(run_set) == [
            ("tags", "IN", ["digits"]),
            ("tags", "IN", [tag]),
            ("finished", "=", True),
        ]
        assert run_set["grouping"] == [{"section": "run", "name": "group"}]
        assert "project" not in run_set, "the report's own project is meant"
        assert {"summary:final/test/acc", "summary:best/test/acc"} <= set(run_set["runFeed"]["columnOrder"])


def test_seeds_average_with_bands_against_rounds_megabytes_and_seconds(spec, runs):
    accuracy, loss = (grids(spec(runs))[number]["panelBankSectionConfig"]["panels"] for number in (1, 2))
    columns = list(X_OF.values())
    assert curves(accuracy) == [([metric], x) for metric in ("test/acc", "val/acc") for x in columns]
    assert curves(loss) == [([metric], x) for metric in ("test/loss", "train/loss") for x in columns]
    for panel in accuracy + loss:
        config = panel["config"]
        assert (config["groupAgg"], config["groupArea"]) == ("mean", "stddev")
        megabytes = "${comm/up_bytes} / 1000000" if config["xAxis"] == "comm/up_bytes" else None
        assert config.get("xExpression") == megabytes and not config.get("aggregate"), "grouped by the run set alone"
    assert [config["config"]["xAxisTitle"] for config in accuracy[:3]] == [
        "Communication round",
        "Sent up by all clients (MB)",
        "Wall time (s)",
    ]
    places = [(panel["layout"]["x"], panel["layout"]["y"]) for panel in accuracy]
    assert places == [(0, 0), (8, 0), (16, 0), (0, 6), (8, 6), (16, 6)]


def test_bars_read_final_and_best_from_the_summary(spec, runs):
    panels = grids(spec(runs))[0]["panelBankSectionConfig"]["panels"]
    assert [panel["viewType"] for panel in panels] == ["Bar Chart"] * 3
    assert [panel["config"]["metrics"] for panel in panels] == [
        ["summary_metrics.final/test/acc"],
        ["summary_metrics.best/test/acc"],
        ["summary_metrics.final/test/loss"],
    ]
    assert panels[1]["config"]["chartTitle"] == "Test accuracy at the best round by the run's monitor"


def test_a_method_has_its_colour_in_every_section(spec, runs):
    groups = {group_name(run): run.label for run in find_runs([runs])}
    assert len(groups) == 4, "seeds share a group"
    for grid in grids(spec(runs)):
        name = grid["runSets"][0]["id"]
        assert grid["customRunColors"] == {
            f"{name}-group:{group}": colour_and_marker(label)[0] for group, label in groups.items()
        }


def test_diagnostics_are_shown_where_a_run_has_them(spec, runs, write_run):
    assert "Diagnostics" not in headings(spec(runs), 2) and "Optimum" not in headings(spec(runs), 2)
    scope = scope_of(find_runs([runs]))
    found = sections_for(scope.measured | {"drift/cosine", "precond/drift", "opt/gap"})
    named = {section.name: section.panels for section in found}
    assert [panel.metric for panel in named["Diagnostics"]] == ["drift/cosine", "precond/drift"]
    assert [(panel.axis, panel.log_y) for panel in named["Optimum"]] == [(axis, True) for axis in X_OF]
    assert named["Heterogeneity"] == (Bar("partition/js_mean"),)


def test_every_panel_shows_a_figure_that_runs_write():
    text = (DOCS / "metrics.md").read_text() + (DOCS / "diagnostics.md").read_text()
    split = {f"partition/{key}" for key in heterogeneity([[1, 2], [2, 1]], [3, 3])}
    panels = [panel for section in SECTIONS for panel in section.panels]
    assert len(panels) == len(set(panels)) and all(isinstance(panel, Curve | Bar) for panel in panels)
    for panel in panels:
        assert f"`{panel.metric}`" in text or panel.metric in split, panel
        assert panel.title and not panel.title.startswith(panel.metric), f"{panel.metric} has no name in words"


def test_a_workspace_has_the_same_panels_over_one_run_set(spec, runs):
    page = spec(runs, "--kind", "workspace", "--title", "Two alphas")
    assert (page["entity"], page["project"], page["displayName"]) == ("me", "project", "Two alphas")
    section = page["spec"]["section"]
    (run_set,) = section["runSets"]
    assert conditions(run_set) == [("tags", "IN", ["digits"]), ("tags", "IN", ["alpha=0.1", "alpha=1.0"])]
    assert run_set["grouping"] == [{"section": "run", "name": "group"}]
    sections = section["panelBankConfig"]["sections"]
    assert [entry["name"] for entry in sections] == ["Final and best", "Accuracy", "Loss", "Heterogeneity"]
    mine = [(panel["viewType"], panel["config"]) for entry in sections for panel in entry["panels"]]
    report = [(panel["viewType"], panel["config"]) for panel in panels_of(spec(runs, "--alpha", 0.1))]
    assert mine == report
    assert sorted(section["customRunColors"].values()) == sorted(
        [colour_and_marker("FedAvg")[0], colour_and_marker("FedPM")[0]] * 2
    )


def test_without_folders_a_dry_run_asks_nobody(spec):
    page = spec()
    assert headings(page, 1) == ["All runs"] and headings(page, 2) == ["Final and best", "Accuracy", "Loss"]
    assert conditions(grids(page)[0]["runSets"][0]) == [("finished", "=", True)]
    page = spec("--data", "cifar10", "--alpha", "0.1", "--alpha", "1")
    assert headings(page, 1) == ["cifar10, α = 0.1", "cifar10, α = 1"]
    assert conditions(grids(page)[3]["runSets"][0])[:2] == [("tags", "IN", ["cifar10"]), ("tags", "IN", ["alpha=1.0"])]


def test_signs_in_a_name_reach_the_filter_as_they_are(spec, capsys):
    name = "it's <mine> a!=b\\c"
    assert conditions(grids(spec("--data", name))[0]["runSets"][0])[0] == ("tags", "IN", [name])


def test_a_project_on_the_server_has_the_scope_of_its_folders(runs):
    """The summary of a W&B run holds the last value of what it logged; JSON may hand alpha = 1.0 back as 1."""
    local = find_runs([runs])
    records = []
    for run in local:
        last = {**run.history.rows[-1], "_step": 2, "final/test/acc": 0.5, "partition/js_mean": 0.4}
        facts = {**run.summary, "alpha": int(run.summary["alpha"]) or 0.1}
        remote = SimpleNamespace(id="x", config={**run.config, "facts": facts}, state="finished", summary=last)
        records.append(record_of(remote, "me/project", rows=False))  # there is no scan_history to call
    there, here = scope_of_records(records), scope_of(local)
    assert there.columns == here.columns and there.methods == here.methods
    assert sections_for(there.measured) == sections_for(here.measured)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--wandb", "project", "--dry-run"], "write --wandb ENTITY/PROJECT"),
        (["--wandb", "me/p", "--kind", "workspace", "--publish"], "never a draft"),
        (["--wandb", "me/p", "--title", "x" * 129, "--dry-run"], "1 to 128 characters, got 129"),
        (["--wandb", "me/p", "--kind", "workspace", "--title", "a 🚀", "--dry-run"], "letters, digits"),
        (["--wandb", "me/p", "nowhere", "--dry-run"], "nowhere is not a folder"),
    ],
)
def test_mistakes_are_told_in_words(words, says, capsys):
    assert main(["report", *words]) == 2
    error = capsys.readouterr().err
    assert error.splitlines()[-1].startswith("error: ") and says in error


def test_an_alpha_that_no_run_has_names_those_there_are(runs, capsys):
    assert main(["report", "--wandb", "me/p", str(runs), "--alpha", "0.5", "--dry-run"]) == 2
    assert "there are: digits alpha=0.1, digits alpha=1" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["report", "--wandb", "me/p", "--alpha", "-1", "--dry-run"])


@pytest.fixture
def nobody(tmp_path, monkeypatch):
    """Nobody is logged in; afterwards W&B reads the environment anew, for the tests that follow."""
    import wandb

    wandb.teardown()
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    yield
    wandb.teardown()


@pytest.mark.parametrize("with_folders", [True, False])
def test_without_a_login_it_says_how_to_get_one(nobody, runs, capsys, with_folders):
    assert main(["report", "--wandb", "me/project", *([str(runs)] if with_folders else [])]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith("error: nobody is logged in to W&B: log in with `wandb login`")


def test_told_to_stay_offline_it_does(monkeypatch, capsys):
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert main(["report", "--wandb", "me/project"]) == 2
    assert "WANDB_MODE=offline keeps W&B from its server: unset it" in capsys.readouterr().err
