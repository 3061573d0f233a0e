"""From files and options to one mapping: how a command line becomes a configuration, without loading torch."""
