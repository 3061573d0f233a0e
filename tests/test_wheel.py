"""What is built: a wheel that works without the repository, from the sources and from their archive."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from fedpm_lightning.cli import main
from fedpm_lightning.version import RECORD, commit

REPO = Path(__file__).resolve().parents[1]
PACKAGE = REPO / "src" / "fedpm_lightning"
COMMIT = commit(PACKAGE)


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with the archive of the sources, and the wheel that was built from it."""
    pytest.importorskip("build", reason="`pip install build` or the dev extra builds the wheel")
    out = tmp_path_factory.mktemp("dist")
    words = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), "."]
    done = subprocess.run(words, cwd=REPO, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return out


def test_the_wheel_holds_every_module_configuration_and_sweep_and_its_commit(built):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
        assert archive.read(f"fedpm_lightning/{RECORD}").decode().strip() == COMMIT
        assert archive.read("fedpm_lightning/configs/w8a.yaml") == (REPO / "configs" / "w8a.yaml").read_bytes()
    shipped = {p.relative_to(REPO) for kind in ("configs", "sweeps") for p in (REPO / kind).rglob("*.yaml")}
    sources = {p.relative_to(PACKAGE) for p in PACKAGE.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    assert held == {f"fedpm_lightning/{path}" for path in (*shipped, *sources, RECORD)}


def test_the_wheels_page_has_no_link_into_the_repository_that_is_not_whole(built):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        facts = Parser().parsestr(archive.read(name).decode())
    assert facts["Description-Content-Type"] == "text/markdown"
    links = re.findall(r"\]\(([^)\s]+)\)", str(facts.get_payload()))
    assert len(links) > 20 and [link for link in links if not link.startswith(("https://", "#"))] == []
    assert {"hf", "plots", "dashboard", "reports"} <= set(facts.get_all("Provides-Extra", []))


def test_the_commit_is_as_built_else_the_checkouts_else_unknown(tmp_path, capsys):
    package = tmp_path / "src" / "fedpm_lightning"
    package.mkdir(parents=True)
    assert commit(package) == "unknown"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path)]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run([*git, *words], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    assert commit(package) == head[:12]
    assert (
        commit(tmp_path / "lib" / "site-packages" / "fedpm_lightning") == "unknown"
    )  # somebody's repository, not ours
    (package / RECORD).write_text("abc\n")
    assert commit(package) == "abc"
    assert main(["--version"]) == 0
    assert re.fullmatch(r"fedpm-lightning \S.*, commit \S+\n", capsys.readouterr().out)


@pytest.mark.slow
def test_a_new_environment_with_the_wheel_alone_runs_by_name_in_an_empty_folder(built, tmp_path):
    """As a user would type it; the libraries are this environment's."""
    venv.create(tmp_path / "venv", with_pip=True, system_site_packages=True)
    programs = tmp_path / "venv" / "bin"
    (wheel,) = built.glob("*.whl")
    libraries = Path(sysconfig.get_paths(vars={"base": str(tmp_path / "venv")})["purelib"])
    environment = {"PATH": str(programs), "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}  # no PYTHONPATH of ours
    subprocess.run([programs / "pip", "install", "--quiet", "--no-deps", wheel], check=True, env=environment)
    (libraries / "libraries.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    folder = tmp_path / "empty"
    folder.mkdir()

    def fedpm(words: str) -> str:
        done = subprocess.run(
            [programs / "fedpm", *words.split()], cwd=folder, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    assert f"commit {COMMIT}" in fedpm("--version")
    assert str(libraries) in fedpm("configs")
    fedpm("fit --config quickstart --config configs/method/fedavg.yaml --rounds 1 --run_dir runs/mine")
    assert "FedAvg" in fedpm("compare runs/")
    assert len(fedpm("sweep digits --dry-run").splitlines()) == 8
    fedpm("configs digits --copy .")
    assert (folder / "sweeps" / "digits.yaml").is_file()
