"""Files that ship, by name: which file a word means, from any folder; `fedpm configs` lists and copies them."""

from __future__ import annotations

import os
import sys

import pytest

from fedpm_lightning.cli import main
from fedpm_lightning.configuration import ConfigurationError, shipped
from fedpm_lightning.configuration.read import read
from fedpm_lightning.configuration.shipped import headline, locate


@pytest.fixture(autouse=True)
def empty(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("given", ["quickstart", "quickstart.yaml", "configs/quickstart.yaml", "./configs/quickstart"])
def test_a_name_and_the_repositorys_path_mean_the_shipped_file(given, repo):
    assert locate("configs", given) == repo / "configs" / "quickstart.yaml"
    assert read(["fit", "--config", given]).values["experiment"] == "quickstart"


def test_a_file_that_is_there_wins_and_a_folder_of_that_name_does_not(empty, repo):
    (empty / "quickstart").mkdir()
    assert locate("configs", "quickstart") == repo / "configs" / "quickstart.yaml"
    (empty / "configs").mkdir()
    (empty / "configs" / "quickstart.yaml").write_text("experiment: mine\n")
    assert read(["fit", "--config", "configs/quickstart.yaml"]).values == {
        "experiment": "mine",
        "data": read(["fit"]).values["data"],
    }
    assert read(["fit", "--config", "quickstart"]).values["experiment"] == "quickstart"


@pytest.mark.parametrize(
    ("kind", "given", "meant"),
    [
        ("configs", "quickstrt", "did you mean quickstart?"),
        ("configs", "fedavg", "did you mean method/fedavg?"),
        ("configs", "configs/method/fedpmm.yaml", "did you mean method/fedpm?"),
        ("sweeps", "digts", "did you mean digits?"),
    ],
)
def test_a_mistyped_name_says_what_may_be_meant(kind, given, meant):
    with pytest.raises(ConfigurationError) as caught:
        locate(kind, given)
    assert meant in str(caught.value) and "fedpm configs lists" in str(caught.value)


def test_nothing_is_guessed_where_nothing_is_near():
    with pytest.raises(ConfigurationError) as caught:
        locate("configs", "xyzzy")
    assert "did you mean" not in str(caught.value)


def test_an_installed_package_has_its_files_inside(empty, monkeypatch):
    """A wheel: no repository around it, and a folder `configs` higher up that is somebody else's."""
    package = empty / "lib" / "site-packages" / "fedpm_lightning"
    for place in (package / "configs", empty / "lib" / "configs"):
        place.mkdir(parents=True)
        (place / "only.yaml").write_text("rounds: 3\n")
    monkeypatch.setattr(shipped, "_PACKAGE", package)
    assert locate("configs", "only") == package / "configs" / "only.yaml"


def test_every_shipped_file_says_what_it_is(repo):
    files = {**shipped.shipped("configs"), **shipped.shipped("sweeps")}
    said = {name: headline(file) for name, file in files.items()}
    assert [name for name, line in said.items() if not (15 < len(line) <= 130 and line.endswith("."))] == []
    assert len(shipped.shipped("configs")) == len(list((repo / "configs").rglob("*.yaml")))


def test_a_sweep_by_name_has_the_points_of_its_path_from_any_folder(empty, repo, capsys):
    assert main(["sweep", "digits", "--dry-run"]) == 0
    by_name = capsys.readouterr().out
    for name in ("configs", "sweeps"):
        os.symlink(repo / name, empty / name)
    assert main(["sweep", "sweeps/digits.yaml", "--dry-run"]) == 0
    assert capsys.readouterr().out == by_name and len(by_name.splitlines()) == 8


def test_the_list_names_every_file_and_a_name_shows_it(capsys, repo):
    assert main(["configs"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert listed == [*shipped.shipped("configs"), *shipped.shipped("sweeps")]
    assert main(["configs", "method/fedpm"]) == 0
    assert capsys.readouterr().out == (repo / "configs/method/fedpm.yaml").read_text()
    assert main(["configs", "quickstrt"]) == 2
    assert "did you mean quickstart?" in capsys.readouterr().err


def test_copies_lie_where_a_repository_has_them_and_overwrite_nothing(empty, capsys, repo):
    assert main(["configs", "quickstart", "method/fedavg", "digits", "--copy", "."]) == 0
    copied = {path.relative_to(empty).as_posix() for path in empty.rglob("*.yaml")}
    assert copied == {"configs/quickstart.yaml", "configs/method/fedavg.yaml", "sweeps/digits.yaml"}
    mine = empty / "configs" / "quickstart.yaml"
    assert mine.read_bytes() == (repo / "configs/quickstart.yaml").read_bytes()
    mine.write_text("rounds: 3\n")
    assert main(["configs", "--copy", "."]) == 2
    assert "quickstart.yaml is there with another content; nothing was copied" in capsys.readouterr().err
    assert mine.read_text() == "rounds: 3\n" and not (empty / "configs" / "w8a.yaml").exists()
    mine.unlink()
    assert main(["configs", "--copy", "."]) == 0
    assert (empty / "configs" / "paper" / "epochs" / "50x10.yaml").is_file()


def test_a_reader_that_has_seen_enough_is_no_error(monkeypatch, capsys):
    """`fedpm configs | head -1`: head leaves."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert main(["configs"]) == 141
    assert capsys.readouterr().err == ""
