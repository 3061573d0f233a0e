"""The commands of `fedpm`, a file each, and what they share; those over runs are in report/, sweeps in sweep/."""
