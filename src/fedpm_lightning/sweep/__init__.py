"""Sweeps: the points of a W&B sweep file, run here, as a SLURM array or under an agent."""


class SweepError(ValueError):
    """A sweep file or a sweep's folder that cannot be used; the message names the key, the value and the way out."""
