"""How many threads a run gets, and who decides."""

from __future__ import annotations

import pytest

from fedpm_lightning.commands import threads
from fedpm_lightning.commands.threads import choose_threads, has_bf16

SMALL, LARGE = (26_122, False), (1_000_000, False)


@pytest.mark.parametrize(
    ("net", "ranks", "asked", "environment", "number"),
    [
        (SMALL, 1, None, {}, 1),
        (LARGE, 1, None, {}, 8),
        ((10_000, True), 1, None, {}, 8),
        (LARGE, 2, None, {}, 4),
        (LARGE, 2, None, {"FEDPM_JOBS": "2"}, 2),
        (LARGE, 16, None, {"FEDPM_JOBS": "x"}, 1),
        (LARGE, 1, None, {"OMP_NUM_THREADS": "3"}, None),
        (SMALL, 1, 5, {"OMP_NUM_THREADS": "3"}, 5),
    ],
)
def test_small_networks_get_one_and_others_their_share(monkeypatch, net, ranks, asked, environment, number):
    monkeypatch.setattr(threads, "cores", lambda: 8)
    assert choose_threads(*net, ranks, asked, environment)[0] == number


def test_no_threads_are_refused():
    with pytest.raises(ValueError, match="threads must be at least 1, or null to choose, got 0"):
        choose_threads(*SMALL, 1, 0, {})


def test_a_processor_without_bf16_is_known_by_its_flags(tmp_path):
    old, new, none = tmp_path / "old", tmp_path / "new", tmp_path / "none"
    old.write_text("flags : fpu avx2 avx512f\n"), new.write_text("flags : fpu avx512_bf16\n")
    assert has_bf16(new) and not has_bf16(old) and has_bf16(none)


def test_a_run_says_its_threads_once(quickstart, capsys, monkeypatch):
    monkeypatch.setattr("fedpm_lightning.commands.fit.has_bf16", lambda: False)
    words = ("--rounds", "1", "--model.local_epochs", "1", "--threads", "1", "--trainer.precision", "bf16-mixed")
    run = quickstart(*words)
    out = capsys.readouterr().out
    assert run.code == 0 and run.summary["threads"] == 1 and out.count("threads: 1 (as asked)") == 1
    assert out.count("no bf16 instructions") == 1
