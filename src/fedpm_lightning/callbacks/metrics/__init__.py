"""Metrics that a run records besides the global model's loss and accuracy."""
