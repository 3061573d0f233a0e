"""Runs that lie at W&B: read from its files and its server, and compared on a page there (`fedpm report`)."""
