"""Federated learning experiments on PyTorch Lightning, with FedPM at the heart.

The public names are imported at first use, so that `fedpm --help` and the reports never wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedpm_lightning.callbacks.base import Aggregation, FederatedCallback
    from fedpm_lightning.client.client import Client
    from fedpm_lightning.data import FederatedData
    from fedpm_lightning.methods import Method
    from fedpm_lightning.round import Federation, Round
    from fedpm_lightning.trainer.module import FederatedModule
    from fedpm_lightning.types import ClientUpdate, Cohort

_HOME = {
    "Aggregation": "callbacks.base",
    "Client": "client.client",
    "ClientUpdate": "types",
    "Cohort": "types",
    "FederatedCallback": "callbacks.base",
    "FederatedData": "data",
    "FederatedModule": "trainer.module",
    "Federation": "round",
    "Method": "methods",
    "Round": "round",
}

__all__ = [
    "Aggregation",
    "Client",
    "ClientUpdate",
    "Cohort",
    "FederatedCallback",
    "FederatedData",
    "FederatedModule",
    "Federation",
    "Method",
    "Round",
]


def __getattr__(name: str) -> Any:
    """Import a public name from where it lives."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers {', '.join(_HOME)}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
