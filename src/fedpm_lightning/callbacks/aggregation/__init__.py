"""Aggregations that take the place of the plain one: robust rules, differential privacy, secure aggregation."""
