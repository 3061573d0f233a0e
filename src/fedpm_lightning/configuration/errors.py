"""What is wrong with a configuration."""

from __future__ import annotations


class ConfigurationError(ValueError):
    """A file or an option that cannot be used; the message names it, its value and the way out. Exit code 2."""
