"""The page stands alone, and nothing that a run folder says can become part of its code."""

from __future__ import annotations

import json
import re
import sys

import pytest

from fedpm_lightning.cli import main
from fedpm_lightning.report.dashboard.page import SCRIPTS, asset, script_json
from fedpm_lightning.report.plots.style import web_style
from fedpm_lightning.report.taxonomy import method_of

EVIL = "</script><script>document.title='owned'</script><!-- {{scripts}} &amp;"


def test_nothing_is_loaded_from_elsewhere(few, page):
    found = page()
    frame = found.text
    for name in ("manifest", "arrays", "plotly"):
        frame = frame.replace(found.block(name), "")
    assert not re.search(r"""(src|href)\s*=\s*["'](?!#|data:)""", frame)
    assert "http://" not in frame.replace("http://www.w3.org/2000/svg", "") and "https://" not in frame
    assert "connect-src 'none'" in frame and "default-src 'none'" in frame


def test_text_from_runs_cannot_leave_the_data(tmp_path, write_run, page):
    write_run(tmp_path / "runs" / "fine")
    plain = page().text.count("<script")
    write_run(tmp_path / "runs" / "evil", label=EVIL, data=EVIL, error=EVIL)
    found = page("--title", EVIL)
    assert found.text.count("<script") == plain and found.text.count("<!--") == 0
    assert any(run["error"] == EVIL and run["label"] == EVIL for run in found.manifest["runs"])
    assert found.manifest["title"] == EVIL and "<title>&lt;/script&gt;" in found.text


def test_json_in_a_script_element():
    assert json.loads(script_json({"a": EVIL})) == {"a": EVIL}
    assert not set("<>&") & set(script_json({"a": EVIL}))


def test_scripts_build_no_markup_from_text():
    for name in SCRIPTS:
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", asset(name)), name


def test_a_method_keeps_its_look():
    assert web_style("FedPM", 0) == web_style("FedPM (lr=0.1)", 0) != web_style("FedAvg", 0)
    assert web_style("FedPM", 1)["dash"] != web_style("FedPM", 0)["dash"]
    assert method_of("FedAvgM (lr=1)") == "FedAvgM" and method_of("Mine") == "Mine"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "nowhere is not a folder"),
        (["runs", "--serve", "--port", "99999"], "--port must be in 0..65535, got 99999"),
        (["runs", "--serve", "--refresh", "0"], "--refresh must be at least 0.2 seconds, got 0"),
        (["runs", "--output", "runs"], "runs"),
    ],
)
def test_what_cannot_be_met_is_said(few, monkeypatch, capsys, words, said):
    monkeypatch.chdir(few.parent)
    assert main(["dashboard", *words]) == 2
    assert said in capsys.readouterr().err


def test_without_plotly(few, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    assert main(["dashboard", str(few)]) == 2
    assert "pip install 'fedpm-lightning[dashboard]'" in capsys.readouterr().err
