"""Compression of what is sent: messages, symmetric matrices and sketches."""

from fedpm_lightning.compression.message import Message

__all__ = ["Message"]
