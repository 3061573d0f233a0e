"""Runs logged to W&B: read from its files and its server, and compared in a W&B report (`fedpm report`)."""
