"""Errors that end a run with an exit code of their own."""

from __future__ import annotations


class DivergedError(RuntimeError):
    """The global model is no longer finite, or further from the optimum than any working method goes."""
