"""Figures that a run records beside loss and accuracy of the global model."""
