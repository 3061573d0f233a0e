"""What crosses the network smaller than it is: messages, compressed symmetric matrices and sketches."""

from fedpm_lightning.compression.message import Message

__all__ = ["Message"]
