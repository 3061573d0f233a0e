"""`fedpm new`: what it writes passes its own tests and runs at once, in an empty folder."""

from __future__ import annotations

import contextlib
import io
import os
import sys

import pytest

from fedpm_lightning.cli import main
from fedpm_lightning.commands.new import names


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """An empty folder, from which modules are imported as those of a user are."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in [n for n in sys.modules if n.removeprefix("test_").startswith("my_")]:
        del sys.modules[name]


def new(*words):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["new", *words])
    return code, out.getvalue(), err.getvalue()


@pytest.mark.parametrize("kind", ["method", "data", "callback"])
def test_what_is_written_passes_its_tests_and_runs(kind, empty, fedpm):
    name = f"my_{kind}"
    code, out, _ = new(kind, name)
    assert code == 0 and f"fedpm fit --config quickstart --config {name}.yaml" in out
    assert sorted(f.name for f in empty.glob("*my_*")) == [f"{name}.py", f"{name}.yaml", f"test_{name}.py"]
    assert not any("my_part" in file.read_text().lower() for file in empty.glob("*my_*"))
    alone = ["-q", "-p", "no:cacheprovider", f"--rootdir={empty}", "-c", os.devnull]
    assert pytest.main([*alone, f"test_{name}.py"]) == 0
    run = fedpm(
        "fit", "--config", "quickstart", "--config", f"{name}.yaml", "--rounds", "1", "--model.local_epochs", "1"
    )
    assert run.code == 0
    if kind == "method":
        assert run.summary["method_label"] == "MyMethod"
    if kind == "data":
        assert run.summary["config"]["data"]["name"] == "my_data.load"
    if kind == "callback":
        assert float(run.rows[0]["my_callback/step"]) > 0


@pytest.mark.parametrize(
    ("name", "expected"),
    [("my_method", ("my_method", "MyMethod")), ("MyMethod", ("my_method", "MyMethod")), ("fed2", ("fed2", "Fed2"))],
)
def test_either_spelling_names_both(name, expected):
    assert names(name) == expected


@pytest.mark.parametrize(
    ("name", "why"),
    [("my-method", "use letters, digits and _"), ("class", "cannot be a module's name"), ("json", "is installed")],
)
def test_names_that_cannot_be_are_refused(name, why, empty):
    code, _, error = new("method", name)
    assert code == 2 and why in error and list(empty.iterdir()) == []


def test_nothing_is_overwritten_and_a_folder_is_made(empty):
    (empty / "my_own.yaml").write_text("mine")
    code, _, error = new("data", "MyOwn")
    assert code == 2 and "my_own.yaml exists; nothing was written" in error
    assert [file.name for file in empty.iterdir()] == ["my_own.yaml"] and (empty / "my_own.yaml").read_text() == "mine"
    code, out, _ = new("data", "MyOwn", "--folder", "study")
    assert code == 0 and "cd study" in out and (empty / "study" / "test_my_own.py").is_file()
