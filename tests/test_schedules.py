"""The factors themselves: a wrong period or shift would pass every test that looks at one round."""

from __future__ import annotations

import math

import pytest

from fedpm_lightning.schedules import Constant, Cosine, Exponential, Step


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        (Constant(), [1, 1, 1, 1, 1]),
        (Step(every=2, gamma=0.5), [1, 1, 0.5, 0.5, 0.25]),
        (Exponential(gamma=0.5), [1, 0.5, 0.25, 0.125, 0.0625]),
        (Cosine(), [1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2, 0]),
        (Cosine(floor=0.2), [1, 0.2 + 0.4 * (1 + math.sqrt(0.5)), 0.6, 0.2 + 0.4 * (1 - math.sqrt(0.5)), 0.2]),
    ],
)
def test_factors_of_four_rounds_and_of_one_beyond(schedule, factors):
    assert [schedule.factor(round, 4) for round in range(5)] == pytest.approx(factors, abs=1e-15)
