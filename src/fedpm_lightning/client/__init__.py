"""What happens on one client: its scratch network, its local training loop, its state between rounds."""
