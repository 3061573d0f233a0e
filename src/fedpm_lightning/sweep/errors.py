"""What is wrong with a sweep."""

from __future__ import annotations


class SweepError(ValueError):
    """A sweep file or a sweep's folder that cannot be used; the message names the key, the value and the way out."""
