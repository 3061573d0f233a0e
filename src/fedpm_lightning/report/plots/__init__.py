"""Curves and ablations of runs, as PDF and PNG, and the look that a method has everywhere."""
