"""What happens to clients and their connections in a real deployment, simulated: attacks, dropouts, a network."""
