"""The significance note against scipy and against sums by hand."""

from __future__ import annotations

import math
import re
import statistics

import pytest
from scipy import stats

from fedpm_lightning.report.run import Column, Heterogeneity
from fedpm_lightning.report.runs import find_runs
from fedpm_lightning.report.tables.grid import build_grid
from fedpm_lightning.report.tables.significance import compare_column, holm, paired_p, significance_lines
from fedpm_lightning.report.tables.statistic import CostToReach

COLUMN = Column("digits", Heterogeneity(value=0.1))
BEST = [0.91, 0.93, 0.90, 0.95, 0.92, 0.94]
NEAR = [0.90, 0.90, 0.91, 0.92, 0.90, 0.90]
FAR = [0.70, 0.75, 0.71, 0.73, 0.78, 0.72]


@pytest.fixture
def grid(tmp_path, write_run):
    """A grid of methods: name -> {seed: val/acc}."""

    def build(at="final", **methods):
        for name, values in methods.items():
            values = values if isinstance(values, dict) else dict(enumerate(values))
            for seed, value in values.items():
                write_run(tmp_path / f"{name}-{seed}", name, seed, acc=(value,))
        return build_grid(find_runs([tmp_path]), "val/acc", at)

    return build


@pytest.mark.parametrize("n", [5, 6])
def test_paired_t_and_wilcoxon_with_holm(grid, n):
    found = compare_column(grid(FedPM=BEST[:n], FedAvg=FAR[:n], FedProx=NEAR[:n]), COLUMN)
    assert [(one.best, one.rival, one.n) for one in found] == [("FedPM", "FedAvg", n), ("FedPM", "FedProx", n)]
    far, near = (stats.ttest_rel(BEST[:n], rival[:n]).pvalue for rival in (FAR, NEAR))
    assert far < near, "so Holm multiplies it by two, and the other by one"
    assert [one.t for one in found] == [pytest.approx((far, 2 * far)), pytest.approx((near, max(near, 2 * far)))]
    if n == 5:
        assert [one.wilcoxon for one in found] == [None, None]
    else:
        # All six differences have one sign against FAR: 2 of the 2^6 equally likely signs are as extreme.
        assert found[0].wilcoxon == pytest.approx((2 / 64, 4 / 64))
        differences = [a - b for a, b in zip(BEST, NEAR, strict=True)]
        assert found[1].wilcoxon[0] == pytest.approx(stats.wilcoxon(differences).pvalue)


def test_the_paired_t_by_hand():
    differences = [a - b for a, b in zip(BEST, NEAR, strict=True)]
    t = statistics.fmean(differences) / (statistics.stdev(differences) / math.sqrt(6))
    p, _ = paired_p(BEST, NEAR)
    assert p == pytest.approx(2 * stats.t.sf(abs(t), df=5))


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, None, 0.9]) == [1.0, None, 1.0]
    assert holm([]) == []


def test_below_five_seeds_there_is_no_test(grid):
    (line,) = significance_lines(grid(FedPM=BEST[:4], FedAvg=FAR[:4]))
    assert line == (
        "significance, digits alpha=0.1: n too small (4 common seeds; the paired t test needs 5, Wilcoxon 6)"
    )


def test_the_note_says_n_and_what_is_missing(grid):
    lines = significance_lines(grid(FedPM=BEST[:5], FedAvg=FAR[:5], FedProx=NEAR[:2], LTDA={7: 0.5}))
    assert lines[0].endswith("FedPM against each, paired by seed, p after Holm over 1 rival")
    assert re.fullmatch(r"  FedAvg: \+18\.80, t p = \S+, n too small for Wilcoxon \(needs 6\) \(n = 5\)", lines[1]), (
        lines[1]
    )
    assert lines[2] == (
        "  FedProx: +2.00, n too small for a test (needs 5) (n = 2); seeds do not match, left unpaired: 2, 3, 4"
    )
    assert lines[3] == "  LTDA: no common seed, no test; seeds do not match, left unpaired: 0, 1, 2, 3, 4, 7"


def test_runs_are_paired_by_seed_whatever_their_order(grid):
    shifted = {seed: FAR[seed - 1] for seed in (6, 5, 4, 3, 2, 1)}
    (one,) = compare_column(grid(FedPM=BEST, FedAvg=shifted), COLUMN)
    assert one.seeds == (1, 2, 3, 4, 5) and one.unpaired == (0, 6)
    assert one.t[0] == pytest.approx(stats.ttest_rel(BEST[1:], FAR[:5]).pvalue)
    assert one.wilcoxon is None


def test_equal_differences_are_no_evidence(grid):
    (one,) = compare_column(grid(FedPM=[0.75] * 6, FedAvg=[0.5] * 6), COLUMN)
    assert one.t is None and one.wilcoxon is None
    assert "the same difference at every seed, no test" in significance_lines(grid())[1]


def test_a_smaller_loss_is_the_better_one(tmp_path, write_run, grid):
    grid(FedPM=BEST, FedAvg=FAR)
    (one,) = compare_column(build_grid(find_runs([tmp_path]), "train/loss", "final"), COLUMN)
    assert one.best == "FedPM" and one.difference < 0


def test_costs_to_reach_a_target_are_not_tested(grid):
    assert significance_lines(grid(CostToReach(0.5, "rounds"), FedPM=BEST, FedAvg=FAR)) == []
