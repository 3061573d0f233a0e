"""What crosses the network smaller than it is: messages, compressed symmetric matrices, sketches, quantised vectors."""

from fedpm_lightning.compression.message import Message

__all__ = ["Message"]
