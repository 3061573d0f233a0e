"""CONTRIBUTING's skeleton of a method is a method: it runs from the folder in which the command is typed."""

from __future__ import annotations

import re

import torch


def test_the_skeleton_runs_as_it_stands(quickstart, repo, tmp_path):
    (skeleton,) = re.findall(r"```python\n(.*?)```", (repo / "CONTRIBUTING.md").read_text(), flags=re.DOTALL)
    (tmp_path / "mine.py").write_text(skeleton)
    words = ("--model.local_epochs=1", "--model.net.hidden=[8]", "--data.participation=0.5", "--rounds=2")
    run = quickstart(*words, "--model.method=mine.Mine", "--model.method.pull=0.3")
    assert run.code == 0 and run.summary["method_label"] == "Mine"
    assert run.summary["declared"] == {"taxonomy": ["first order", "parameters"], "look": None}
    last = torch.load(run.folder / "checkpoints" / "last.ckpt", weights_only=True)
    assert last["federated"]["clients"], "its state is in the checkpoint"
    plain = quickstart(*words, "--model.method=mine.Mine", "--model.method.pull=0", folder="plain")
    assert plain.rows[0]["test/loss"] == run.rows[0]["test/loss"], "nothing is remembered in the first round"
    assert plain.rows[1]["test/loss"] != run.rows[1]["test/loss"]


def test_files_that_it_names_are_there(repo):
    text = (repo / "CONTRIBUTING.md").read_text()
    for path in re.findall(r"\]\(([\w./]+)\)", text):
        assert (repo / path).exists(), path
