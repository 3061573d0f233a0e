"""Two live bars: rounds of the run, clients of the round."""

from __future__ import annotations

import time

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_REFRESH_S = 0.1


class RoundBars:
    """The bars of one run on a terminal.

    They are redrawn from the training loop, at most ten times a second, and by no thread: a thread would
    compete with the training for the interpreter lock.

    Args:
        done: Rounds done before.
        total: Rounds in all; None or -1 if there is no end.
        console: Where to draw; default: stdout.
    """

    def __init__(self, done: int, total: int | None, console: Console | None = None) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}"),
            console=console,
            auto_refresh=False,
            transient=True,
            # A long round must not age out of the window from which the time left is estimated.
            speed_estimate_period=24 * 3600.0,
        )
        end = total if total is not None and total > 0 else None
        self._rounds = self._progress.add_task("rounds ", total=end, completed=done, figures="")
        self._clients = self._progress.add_task("clients", total=None, figures="")
        self._drawn_at = 0.0
        self._progress.start()

    def begin_round(self, clients: int) -> None:
        """Set the lower bar to zero."""
        self._progress.reset(self._clients, total=clients)
        self._draw()

    def advance_client(self) -> None:
        """Move the lower bar by one client."""
        self._progress.advance(self._clients)
        self._draw()

    def end_round(self, figures: str) -> None:
        """Move the upper bar by one round and show the round's figures."""
        self._progress.update(self._rounds, advance=1, figures=escape(figures))
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
