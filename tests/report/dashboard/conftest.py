"""A page over a handful of runs, read back as a program would, and opened in Chromium."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("plotly", reason="the dashboard needs the dashboard extra")

from fedpm_lightning.report.dashboard.command import main

CHROMIUM, DRIVER = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--window-size=1400,1200",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


class Page:
    """A written page: its text, its manifest and its columns."""

    def __init__(self, file: Path) -> None:
        self.file, self.text = file, file.read_text(encoding="utf-8")
        self.manifest: dict[str, Any] = json.loads(self.block("manifest"))
        numbers = np.frombuffer(gzip.decompress(base64.b64decode(self.block("arrays"))), dtype="<f4")
        self.columns = np.split(numbers, np.cumsum(self.manifest["lengths"])[:-1])

    def block(self, name: str) -> str:
        found = re.search(rf'<script id="{name}" type="[^"]*">(.*?)</script>', self.text, flags=re.DOTALL)
        assert found is not None
        return found[1]

    def run(self, name: str) -> dict[str, Any]:
        return next(run for run in self.manifest["runs"] if run["name"] == name)

    def column(self, name: str, key: str) -> list[float]:
        return self.columns[self.run(name)["columns"][key]].tolist()

    def setting(self, label: str, split: str = "alpha=0.1") -> dict[str, Any]:
        found = [s for s in self.manifest["settings"] if (s["label"], s["split"]) == (label, split)]
        assert len(found) == 1
        return found[0]


@pytest.fixture
def page(tmp_path: Path) -> Callable[..., Page]:
    """Write the page over the runs in `tmp_path/runs` and read it back."""

    def write(*words: str) -> Page:
        file = tmp_path / "page.html"
        assert main([str(tmp_path / "runs"), "--output", str(file), *words]) == 0
        return Page(file)

    return write


@pytest.fixture
def few(tmp_path: Path, write_run: Callable[..., Path]) -> Path:
    """Two methods on two alphas, two seeds each, and one run each that is resumed, unfinished and diverged."""
    folder = tmp_path / "runs"
    for label, gain in (("FedAvg", 0.0), ("FedPM", 0.2)):
        for alpha in (0.1, 1.0):
            for seed in (0, 1):
                acc = [0.3 + gain + 0.1 * alpha + 0.01 * seed, 0.5 + gain + 0.1 * alpha + 0.02 * seed]
                name = f"{label}-{alpha}-{seed}"
                _write(write_run, folder / name, label=label, alpha=alpha, seed=seed, acc=acc)
    _write(
        write_run, folder / "resumed", label="FedPM", alpha=0.1, seed=2, acc=[0.5, 0.75], resumes=[{"after_round": 1}]
    )
    _write(write_run, folder / "going", label="FedProx", alpha=0.1, seed=0, acc=[0.4], finished=False)
    _write(
        write_run,
        folder / "lost",
        label="SCAFFOLD",
        alpha=0.1,
        acc=[0.2],
        finished=False,
        diverged=True,
        error="NaN in round 2",
    )
    return folder


def _write(write_run: Callable[..., Path], path: Path, **facts: Any) -> None:
    write_run(path, **facts)
    split = {"kind": "Dirichlet", "arguments": {"alpha": facts["alpha"]}}
    found = {"partition": split, "seed": 0, "sizes": [2, 2], "histogram": [[2, 0], [0, 2]], "sha256": "ab"}
    (path / "partition.json").write_text(json.dumps(found))
    lines = (path / "metrics.csv").read_text().splitlines()
    lines[0] += ",comm/up_bytes,time/total_s,drift/norm,drift/cosine"
    lines[1:] = [f"{line},{i * 1_000_000},{i * 2.5},{3 - i},0.{i}" for i, line in enumerate(lines[1:], start=1)]
    (path / "metrics.csv").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A headless Chromium that records its console and everything it asks the network for."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs the browser extra")
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("needs Chromium and ChromeDriver (Debian: chromium, chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
        yield driver
        driver.quit()
