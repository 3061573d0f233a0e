"""From files and options to one mapping: how a command line becomes a configuration, without loading torch."""


class ConfigurationError(ValueError):
    """A file or an option that cannot be used; the message names it, its value and the way out. Exit code 2."""
