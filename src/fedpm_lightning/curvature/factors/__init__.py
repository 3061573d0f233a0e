"""Factors A over several batches: running means, stacked clients, one pass over all local data."""
