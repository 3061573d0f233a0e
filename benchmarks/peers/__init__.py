"""A round of other federated simulators beside ours: the same task, in an environment of each one's own."""
