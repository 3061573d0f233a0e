"""Rounds in Lightning's Trainer: the module, its loops, and the check of the trainer's settings."""
