"""The aggregation as a callback, so that YAML can put a subclass (robust aggregation, an attack study) in its place."""

from __future__ import annotations

from fedpm_lightning import round as core
from fedpm_lightning.callbacks.base import FederatedCallback


class Aggregation(core.Aggregation, FederatedCallback):
    """Plain aggregation as the method defines it; `FederatedModule` adds it where the trainer has no other."""

    records = ("train/loss", "clients/returned", "clients/dropped")
