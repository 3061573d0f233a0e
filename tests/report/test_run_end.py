from __future__ import annotations

import time

from fedpm_lightning.report.run_end import ranking_lines


def test_a_run_is_ranked_among_its_finished_siblings_on_the_same_task(tmp_path, write_run):
    me = write_run(tmp_path / "me", "FedPM", 0, acc=(0.5, 0.8, 0.7))
    assert ranking_lines(me) == [], "alone"
    write_run(tmp_path / "same", "FedPM", 1, acc=(0.5, 0.7, 0.6))
    write_run(tmp_path / "ahead", "FedAvg", 4, acc=(0.9, 0.1, 0.1))
    write_run(tmp_path / "behind", "FedProx", acc=(0.2, 0.3, 0.1))
    write_run(tmp_path / "elsewhere", alpha=1.0, acc=(0.99,) * 3)
    write_run(tmp_path / "longer", acc=(0.99,) * 4)
    write_run(tmp_path / "going", acc=(0.99,) * 3, finished=False)
    write_run(tmp_path / "other_metric", acc=(0.99,) * 3, monitor={"key": "test/acc", "mode": "max"})
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "summary.json").write_text("{")
    assert ranking_lines(me) == [
        f"place 2 of 4 finished runs on digits alpha=0.1 in {tmp_path.name}/ by best val/acc",
        "  this run 0.8000, first 0.9000 (FedAvg s4 in ahead)",
        "  2 seeds of this setting: 0.7500 ± 0.0707",
    ]


def test_the_best_run_hears_of_the_next(tmp_path, write_run):
    me = write_run(tmp_path / "me", monitor={"key": "val/acc", "mode": "min"}, best={"val/acc": 0.001})
    write_run(tmp_path / "next", "FedPM", monitor={"key": "val/acc", "mode": "min"}, best={"val/acc": 0.5})
    lines = ranking_lines(me)
    assert lines[0].startswith("place 1 of 2") and "next 0.5000 (FedPM s0 in next)" in lines[1] and len(lines) == 2


def test_a_run_that_did_not_finish_has_no_place(tmp_path, write_run):
    write_run(tmp_path / "other")
    assert ranking_lines(write_run(tmp_path / "half", finished=False)) == []
    assert ranking_lines(tmp_path / "nowhere") == []


def test_hundreds_of_siblings_are_quick_and_there_is_a_limit(tmp_path, write_run):
    me = write_run(tmp_path / "me", acc=(0.5,))
    template = write_run(tmp_path / "s0", seed=1, acc=(0.6,))
    text = (template / "summary.json").read_text()
    for number in range(300):
        folder = tmp_path / f"t{number}"
        folder.mkdir()
        (folder / "summary.json").write_text(text)
    start = time.perf_counter()
    assert ranking_lines(me, patience_s=60)[0].startswith("place 302 of 302 finished runs on")
    assert time.perf_counter() - start < 5.0
    assert ranking_lines(me, patience_s=0.0) == []
