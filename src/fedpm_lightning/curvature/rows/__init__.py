"""Input rows and output gradients of layers, collected while the network runs, and their second moments."""
