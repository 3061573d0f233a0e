"""What goes wrong with data sets, as two errors that a command line can show without a traceback."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence


class MissingDataError(FileNotFoundError):
    """A data set is not on this machine: the message gives the expected path, the size and what to do."""


class BrokenDataError(ValueError):
    """A file is there but broken: the message gives the file, the row and what was expected."""


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its kind where it has none."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def check_memory(shape: Sequence[int], itemsize: int, cause: str) -> None:
    """Refuse an array whose size a file decides before anything tries to allocate it.

    Args:
        shape: Of the array.
        itemsize: Bytes a number.
        cause: The file and what in it asks for this size.

    Raises:
        BrokenDataError: If it is larger than the memory of this machine.
    """
    asked, there = math.prod(shape) * itemsize, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if asked > there:
        raise BrokenDataError(
            f"{cause} makes {' x '.join(map(str, shape))} numbers of {itemsize} bytes, {asked / 2**30:,.1f} GiB; "
            f"expected at most this machine's {there / 2**30:.1f} GiB"
        )
