"""Two live bars: rounds of the run, clients of the round; and below them the last round's figures."""

from __future__ import annotations

import time
from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

_REFRESH_S = 0.1


class _Bars(Progress):
    """Bars, and a line of figures that is cut before it costs a bar its time left."""

    figures = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        """Return the bars and the line below."""
        yield self.make_tasks_table(self.tasks)
        yield Text(self.figures, no_wrap=True, overflow="ellipsis")


class RoundBars:
    """The bars of one run on a terminal.

    They are redrawn from the training loop, at most ten times a second. A thread redraws them twice a second, so that
    something moves while the server mixes; more often it would compete with the training for the interpreter lock.

    Args:
        done: Rounds done before.
        total: Rounds in all; None or -1 if there is no end.
        console: Where to draw; default: stdout.
    """

    def __init__(self, done: int, total: int | None, console: Console | None = None) -> None:
        self._progress = _Bars(
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            refresh_per_second=2,
            transient=True,
            # A long round must not age out of the window from which the time left is estimated.
            speed_estimate_period=24 * 3600.0,
        )
        end = total if total is not None and total > 0 else None
        self._rounds = self._progress.add_task("rounds", total=end, completed=done)
        self._work = self._progress.add_task("clients", total=None)
        self._drawn_at = 0.0
        self._progress.start()

    def begin(self, work: str, total: int | None = None) -> None:
        """Set the lower bar to zero for the next part of the round.

        Args:
            work: Its name: clients, mixing, evaluating.
            total: Its number of steps; None if it has none, so that the bar only moves.
        """
        # Progress.reset keeps the total where it is given None.
        self._progress.reset(self._work, description=work)
        self._progress.tasks[1].total = total
        self._progress.refresh()

    def advance(self) -> None:
        """Move the lower bar by one step."""
        self._progress.advance(self._work)
        self._draw()

    def end_round(self, figures: str) -> None:
        """Move the upper bar by one round and show the round's figures."""
        self._progress.figures = figures
        self._progress.advance(self._rounds)
        self._draw()

    def print(self, text: str) -> None:
        """Print above the bars."""
        self._progress.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Remove the bars."""
        self._progress.stop()

    def _draw(self) -> None:
        now = time.monotonic()
        if now - self._drawn_at >= _REFRESH_S:
            self._drawn_at = now
            self._progress.refresh()
