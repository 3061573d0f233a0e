"""Where the time of a round goes: named spans in the code, which cost nothing until somebody starts the stopwatch.

    @timed("factors")                      # at the work
    def update_curvature(self, rows): ...

    watch = Stopwatch().start()            # at who wants to know
    ...
    watch.seconds["factors"]

A span inside another one counts for the outer one alone, so that spans never overlap.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


class Stopwatch:
    """Sums the seconds of the spans of this process while it runs; one runs at a time.

    Args:
        synchronize: Wait for the GPU at both ends of a span. Without it these are times of the host: a kernel counts
            where the host waits for it, not where it was launched.

    Attributes:
        seconds: Span name -> seconds since the start.
    """

    running: Stopwatch | None = None

    def __init__(self, synchronize: bool = False) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._wait = synchronize and torch.cuda.is_available()
        self._open = False

    def start(self) -> Stopwatch:
        """Start at zero; a stopwatch that was running stops."""
        self.seconds.clear()
        self._open, Stopwatch.running = False, self
        return self

    def stop(self) -> None:
        """Stop, if this one is running."""
        if Stopwatch.running is self:
            Stopwatch.running = None

    def now(self) -> float:
        """Return the time in seconds, after the GPU has caught up where `synchronize` asks for that."""
        if self._wait:
            torch.cuda.synchronize()
        return time.perf_counter()

    def measure(self, name: str, work: Callable[[], T]) -> T:
        """Return what `work` returns, and add its time to the span."""
        if self._open:
            return work()
        self._open, begin = True, self.now()
        try:
            return work()
        finally:
            self.seconds[name] += self.now() - begin
            self._open = False


def timed(name: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Make a function a span: its time counts under `name` while a stopwatch runs."""

    def wrap(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def inner(*args: P.args, **kwargs: P.kwargs) -> T:
            watch = Stopwatch.running
            if watch is None:
                return function(*args, **kwargs)
            return watch.measure(name, lambda: function(*args, **kwargs))

        return inner

    return wrap
