"""What the verb prints, in each format, against figures recomputed from metrics.csv with nothing of this package."""

from __future__ import annotations

import csv
import io
import json
import random
import re
import shutil
import statistics
import subprocess

import pytest

from fedpm_lightning.cli import main
from fedpm_lightning.report.tables.latex import escape

METHODS, ALPHAS, SEEDS = ("FedAvg", "LocalNewton", "FedPM"), (1.0, 0.1), (0, 1, 2)
HEADS = ["digits alpha=1", "digits alpha=0.1"]


@pytest.fixture
def sweep(tmp_path, write_run):
    """Three methods x two alphas x three seeds, nested as a sweep leaves them."""
    draw = random.Random(0)
    for method in METHODS:
        for alpha in ALPHAS:
            for seed in SEEDS:
                acc = [0.3 + 0.6 * draw.random() for _ in range(4)]
                write_run(tmp_path / "sweep" / f"{method}-{alpha}" / f"s{seed}", method, seed, acc, alpha)
    return tmp_path / "sweep"


def recomputed(folder, best=False):
    """(method, column) -> (mean, std, n) of test/acc, straight from the files."""
    values: dict[tuple[str, str], list[float]] = {}
    for file in sorted(folder.rglob("metrics.csv")):
        rows = list(csv.DictReader(file.read_text().splitlines()))
        row = max(rows, key=lambda one: float(one["val/acc"])) if best else rows[-1]
        facts = json.loads((file.parent / "summary.json").read_text())
        key = (facts["method_label"], f"{facts['data']} alpha={facts['alpha']:g}")
        values.setdefault(key, []).append(float(row["test/acc"]))
    return {key: (statistics.fmean(found), statistics.stdev(found), len(found)) for key, found in values.items()}


def printed(capsys, *words):
    assert main(["compare", *map(str, words)]) == 0
    return capsys.readouterr().out


def texts(figures):
    """The same in the form of the tables, and the best of each column."""
    shown = {key: f"{100 * mean:.2f} ± {100 * std:.2f} ({n})" for key, (mean, std, n) in figures.items()}
    best = {head: max(METHODS, key=lambda method: figures[method, head][0]) for head in HEADS}
    return shown, best


@pytest.mark.parametrize("at", ["final", "best"])
def test_csv_equals_the_recomputation(sweep, capsys, at):
    figures = recomputed(sweep, best=at == "best")
    _, best = texts(figures)
    lines = list(csv.DictReader(io.StringIO(printed(capsys, sweep, "--format", "csv", "--at", at))))
    assert len(lines) == len(METHODS) * len(ALPHAS)
    for line in lines:
        mean, std, n = figures[line["method"], f"{line['data']} {line['split']}"]
        assert (float(line["mean"]), float(line["std"]), int(line["n"])) == pytest.approx((mean, std, n), rel=1e-12)
        assert (line["best"] == "1") == (line["method"] == best[f"{line['data']} {line['split']}"])
        assert len(line["runs"].split(";")) == n and line["at"] == at


def test_markdown_equals_the_recomputation(sweep, capsys):
    shown, best = texts(recomputed(sweep))
    lines = [line for line in printed(capsys, sweep, "--format", "markdown").splitlines() if line.startswith("| ")]
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert table[0] == ["method", *HEADS] and [row[0] for row in table[2:]] == list(METHODS)
    for method, *cells in table[2:]:
        for head, cell in zip(HEADS, cells, strict=True):
            assert cell == (f"**{shown[method, head]}**" if best[head] == method else shown[method, head])


def test_the_terminal_equals_the_recomputation(sweep, capsys):
    shown, _ = texts(recomputed(sweep))
    lines = [line for line in printed(capsys, sweep).splitlines() if line.startswith("│")]
    table = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]
    assert table == [[method, *(shown[method, head] for head in HEADS)] for method in METHODS]


def test_latex_equals_the_recomputation(sweep, capsys):
    shown, best = texts(recomputed(sweep))
    text = printed(capsys, sweep, "--format", "latex")
    body = text[text.index(r"\midrule") : text.index(r"\bottomrule")].splitlines()[1:]
    for line, method in zip(body, METHODS, strict=True):
        label, *cells = [cell.strip() for cell in line.removesuffix(r" \\").split("&")]
        assert label == method
        for head, cell in zip(HEADS, cells, strict=True):
            mean, std, n = re.split(r" \\pm | ± | \(", shown[method, head].rstrip(")"))
            bold = "\\textbf{%s}" if best[head] == method else "%s"
            assert cell == rf"{bold % mean} $\pm$ {bold % std} ({n})"
    assert r"\multicolumn{2}{c}{digits}" in text and r"$\alpha = 0.1$" in text


def test_latex_compiles_with_awkward_names(tmp_path, write_run, capsys):
    for seed in (0, 1):
        write_run(tmp_path / f"a{seed}", "my_method & 50% #1 {x} ~^\\ α€", seed, data="fashion_mnist")
    write_run(tmp_path / "b", "FedPM", finished=False)
    write_run(tmp_path / "c", "FedAvg", data="a9a", alpha=None, partition="InOrder", acc=(1 - 1e-9,))
    table = tmp_path / "table.tex"
    assert main(["compare", str(tmp_path), "--metric", "train/loss", "--output", str(table)]) == 0
    text = table.read_text()
    assert "written:" in capsys.readouterr().err
    assert r"my\_method \& 50\% \#1 \{x\} \textasciitilde{}\textasciicircum{}\textbackslash{} $\alpha$?" in text
    assert r"fashion\_mnist" in text and r"\times 10^{-9}" in text
    for part in ("table", "tabular"):
        assert text.count(rf"\begin{{{part}}}") == text.count(rf"\end{{{part}}}") == 1
    lines = [line.replace(r"\&", "") for line in text.splitlines() if line.endswith(r"\\")]
    widths = {line.count("&") for line in lines if "multicolumn" not in line}
    assert len(widths) == 1, "every line has as many cells"
    if shutil.which("pdflatex"):
        main_file = r"\documentclass{article}\usepackage{booktabs}\begin{document}\input{table.tex}\end{document}"
        (tmp_path / "main.tex").write_text(main_file)
        command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "main.tex"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0 and (tmp_path / "main.pdf").stat().st_size > 1000, done.stdout[-2000:]


def test_escapes():
    assert escape("a_b ± 5% ≥ …") == r"a\_b $\pm$ 5\% $\geq$ \dots{}"


@pytest.mark.parametrize(
    ("name", "begin"), [("t.md", "test/acc at"), ("t.tex", "% needs"), ("t.csv", "method,data"), ("t.txt", "test/acc")]
)
def test_the_file_is_written_in_the_format_that_its_ending_names(tmp_path, write_run, capsys, name, begin):
    write_run(tmp_path / "run")
    out = tmp_path / "deep" / name
    assert printed(capsys, tmp_path, "--output", out) == ""
    assert out.read_text().startswith(begin)


def test_an_ending_that_names_no_format_is_refused_before_anything_is_read(tmp_path, capsys):
    assert main(["compare", str(tmp_path / "none"), "--output", str(tmp_path / "t.xlsx")]) == 2
    told = capsys.readouterr().err
    assert ".xlsx names no format; end it in .md, .tex, .csv, .txt" in told and not (tmp_path / "t.xlsx").exists()


def test_the_readmes_budget_shows_the_quickstarts_figures(repo, tmp_path, write_run, capsys):
    """FedAvg's ten clients send 1.04 MB a round there, FedPM's 1.80, for five rounds."""
    (words,) = re.findall(
        r"fedpm compare runs/ (--metric \S+ --at-bytes \S+ --format markdown)", (repo / "README.md").read_text()
    )
    for label, sent in (("FedAvg", 1.0448e6), ("FedPM", 1.8016e6)):
        write_run(tmp_path / label, label, acc=(0.5,) * 5, bytes_a_round=sent)
    shown = printed(capsys, tmp_path, *words.split())
    assert shown.count("(1)") == 2 and "–" not in shown


def test_a_latex_table_can_be_referred_to(tmp_path, write_run, capsys):
    write_run(tmp_path / "run")
    assert r"\label{tab:test-acc-final}" in printed(capsys, tmp_path, "--format", "latex")


def test_other_settings_are_never_averaged(tmp_path, write_run, capsys):
    """Whatever differs, and with different seeds, so that nothing but the setting keeps the runs apart."""
    one = {"lr_schedule": "Cosine"}
    changes = [{}, {"method": {"lr": 1}}, {"more": one}, {"local_epochs": 1}, {"acc": (0.5, 0.6, 0.7)}, {"rounds": 7}]
    changes += [{"versions": {"fedpm": "9"}}, {"data": "mnist"}, {"alpha": 1.0}, {"label": "FedProx"}]
    for seed, change in enumerate(changes):
        write_run(tmp_path / str(seed), seed=seed, **change)
    lines = list(csv.DictReader(io.StringIO(printed(capsys, tmp_path, "--format", "csv"))))
    assert len(lines) == len(changes) and {line["n"] for line in lines} == {"1"}
    rows = [(line["method"], line["data"], line["split"]) for line in lines]
    assert len(set(rows)) == len(changes)


@pytest.mark.parametrize("form", ["terminal", "markdown", "latex"])
def test_unfinished_diverged_and_resumed_runs_are_marked_and_listed(tmp_path, write_run, capsys, form):
    write_run(tmp_path / "fine", seed=0)
    write_run(tmp_path / "on", seed=1, resumes=[{"after_round": 1, "changed": ["threads: 1 -> 2"]}])
    write_run(tmp_path / "half", seed=2, acc=(0.5,), rounds=2, finished=False)
    write_run(tmp_path / "nan", seed=3, acc=(0.5,), rounds=2, finished=False, diverged=True)
    shown = printed(capsys, tmp_path, "--format", form)
    assert "(2) [1 diverged, 1 unfinished, 1 resumed]" in shown
    assert "on (FedAvg, seed 1): after round 1, with another threads: 1 -> 2" in shown
    assert "half (FedAvg, digits alpha=0.1, seed 2): unfinished (1 of 2 rounds)" in shown
    assert "nan (FedAvg, digits alpha=0.1, seed 3): diverged (1 of 2 rounds)" in shown


def test_many_runs_left_out_for_one_reason_share_a_line(tmp_path, write_run, capsys):
    for seed in range(4):
        write_run(tmp_path / str(seed), seed=seed, acc=(0.5,), rounds=2, finished=False)
    shown = printed(capsys, tmp_path, "--format", "markdown")
    expected = "- left out: 4 runs of FedAvg, digits alpha=0.1 (seeds 0, 1, 2, 3): unfinished (1 of 2 rounds)"
    assert shown.count("left out") == 1 and expected in shown
