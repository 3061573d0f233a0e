"""Hessians over all parameters as one vector: exact, by its square root, and in closed form."""
