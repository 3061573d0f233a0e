"""Who holds which classes: the figures of a partition, its pictures, and its table in the terminal."""
