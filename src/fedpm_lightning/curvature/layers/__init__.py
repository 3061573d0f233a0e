"""Layers: which ones have a factor, how their tensors become one matrix, how a network uses their weights."""
