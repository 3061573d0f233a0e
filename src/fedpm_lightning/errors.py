"""Errors that end a run, and the exit code that each stands for: `fedpm` shows their message without a traceback.

RoundError              1    something is wrong with the run: a client's code, an empty round, an aggregate
    DivergedError           3    NaN, Inf or a loss out of bounds; summary.json says `diverged: true`
    DivergedClientError     3    the same, seen in one client's training or upload (on_bad_client: error)
MissingDataError        1    a data set is not on this machine
BrokenDataError         1    a file is there but broken
"""

from __future__ import annotations


class RoundError(RuntimeError):
    """A round could not be completed."""


class BadClientError(RoundError):
    """A client's training failed; the message names round, client and cause."""


class EmptyRoundError(RoundError):
    """No client of a round, or of several rounds in a row, returned anything with a positive weight."""


class AggregationError(RoundError):
    """The updates arrived but cannot be aggregated."""


class LostRankError(RoundError):
    """Another process of the run has ended, or does not answer any more."""


class DivergedError(RuntimeError):
    """The global model or its loss is not finite, or further from the optimum than any working method goes."""


class DivergedClientError(DivergedError, BadClientError):
    """NaN or Inf in one client's training or in what it uploads."""


class InterruptedRun(BaseException):
    """A signal ended the run in good order. Not an Exception, so that nobody's `except Exception` swallows it.

    Args:
        signal: The signal's number; the exit code is 128 more.
        message: What is saved and how to go on.
    """

    def __init__(self, signal: int, message: str) -> None:
        super().__init__(message)
        self.signal = signal


class MissingDataError(FileNotFoundError):
    """A data set is not on this machine: the message gives the expected path, the size and what to do."""


class BrokenDataError(ValueError):
    """A file is there but broken: the message gives the file, the row and what was expected."""


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its kind where it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
