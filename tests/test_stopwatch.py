"""Spans: nothing without a stopwatch, the outermost counts with one."""

from __future__ import annotations

import time

import pytest

from fedpm_lightning.stopwatch import Stopwatch, timed


@timed("outer")
def outer(seconds: float) -> float:
    time.sleep(seconds)
    return inner(seconds)


@timed("inner")
def inner(seconds: float) -> float:
    time.sleep(seconds)
    if seconds < 0.001:
        raise ValueError(seconds)
    return seconds


def test_spans_never_overlap():
    watch = Stopwatch().start()
    assert outer(0.002) == 0.002 and "inner" not in watch.seconds
    inner(0.002)
    watch.stop()
    assert watch.seconds["outer"] >= 0.004 and watch.seconds["inner"] >= 0.002
    before = dict(watch.seconds)
    inner(0.001)
    assert watch.seconds == before


def test_an_error_closes_its_span():
    watch = Stopwatch().start()
    for _ in range(2):
        with pytest.raises(ValueError, match="0"):
            outer(0.0)
    assert set(watch.seconds) == {"outer"}
    other = Stopwatch().start()
    watch.stop()
    assert Stopwatch.running is other, "only the one that runs can stop"
    other.stop()
    assert Stopwatch.running is None


def test_without_a_stopwatch_a_span_is_a_plain_call():
    @timed("nothing")
    def nothing() -> None:
        """Do nothing."""

    assert nothing.__doc__ == "Do nothing."
    calls = 20_000
    start = time.process_time()
    for _ in range(calls):
        nothing()
    assert (time.process_time() - start) / calls < 5e-6  # seconds; a factor of a small layer takes a hundred times that
