"""What goes wrong with data sets, as two errors that a command line can show without a traceback."""

from __future__ import annotations


class MissingDataError(FileNotFoundError):
    """A data set is not on this machine: the message gives the expected path, the size and what to do."""


class BrokenDataError(ValueError):
    """A file is there but broken: the message gives the file, the row and what was expected."""
