"""Federated learning experiments on PyTorch Lightning, with FedPM at the heart."""
