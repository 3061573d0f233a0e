from __future__ import annotations

import csv

import pytest

from fedpm_lightning.report.metrics_csv import MetricsCsv, read_rows, write_atomically


@pytest.fixture
def table(tmp_path):
    table = MetricsCsv(tmp_path / "metrics.csv")
    table.begin(0)
    return table


def row(number, **more):
    return {"round": float(number), "train/loss": 1 / 3, **more}


def test_rows_read_back_bit_for_bit(table):
    written = [row(1), row(2, bytes=1e15), row(3, nan=float("inf"))]
    for one in written:
        table.write(one)
    assert read_rows(table.path) == written
    assert table.path.read_text().splitlines()[0] == "round,train/loss,bytes,nan"


def test_a_late_metric_widens_the_header_and_every_line_keeps_its_width(table):
    table.write(row(1))
    table.write(row(2, late=5.0))
    table.write(row(3))
    lines = list(csv.reader(table.path.read_text().splitlines()))
    assert {len(line) for line in lines} == {3}
    assert [line[2] for line in lines] == ["late", "", "5", ""]


def test_a_repeated_round_replaces_its_row(table):
    table.write(row(1))
    table.write(row(1, again=1.0))
    assert read_rows(table.path) == [row(1, again=1.0)]


def test_resume_keeps_the_rounds_done_and_drops_the_rest(table):
    for number in (1, 2, 3, 4):
        table.write(row(number))
    again = MetricsCsv(table.path)
    assert again.begin(rounds_done=2) == [row(1), row(2)]
    again.write(row(3, new=1.0))
    assert [int(r["round"]) for r in read_rows(table.path)] == [1, 2, 3]


@pytest.mark.parametrize("tail", ["3,0.12", "3", "\n", "3,abc\n", "3,1,2,3\n", ",0.5\n"])
def test_a_line_cut_short_is_passed_over(table, tail):
    table.write(row(1))
    with table.path.open("a") as file:
        file.write(tail)
    assert read_rows(table.path) == [row(1)]


def test_the_file_is_appended_not_rewritten(table):
    table.write(row(1))
    inode = table.path.stat().st_ino
    table.write(row(2))
    assert table.path.stat().st_ino == inode


def test_a_row_needs_its_round(table):
    with pytest.raises(ValueError, match="needs the key `round`"):
        table.write({"val/acc": 0.5})


def test_a_foreign_file_is_refused(tmp_path):
    (tmp_path / "metrics.csv").write_text("epoch,loss\n1,2\n")
    with pytest.raises(ValueError, match="no `round` column"):
        read_rows(tmp_path / "metrics.csv")


def test_atomic_write_leaves_no_temporary_file(tmp_path):
    write_atomically(tmp_path / "deep" / "a.json", "one")
    write_atomically(tmp_path / "deep" / "a.json", "two")
    assert [(p.name, p.read_text()) for p in (tmp_path / "deep").iterdir()] == [("a.json", "two")]
