"""The run itself: its files and checkpoints, progress on the terminal, the W&B run, stopping on a signal."""
