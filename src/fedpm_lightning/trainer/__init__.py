"""A round in Lightning's Trainer: the module, its loops, and the check of what a trainer was asked for."""
