"""Tools for testing custom methods, callbacks and loaders: the contract, and rounds on small clients.

import pytest
from fedpm_lightning.testing import METHOD_CHECKS, MethodCase

@pytest.mark.parametrize("check", METHOD_CHECKS, ids=lambda check: check.__name__)
def test_the_contract(check):
check(MethodCase(lambda: MyMethod(lr=0.1)))
"""

from __future__ import annotations

from fedpm_lightning.testing.callbacks_and_loaders import check_callback, check_loader
from fedpm_lightning.testing.case import MethodCase, advance, largest_difference, pooled_loss
from fedpm_lightning.testing.contract import METHOD_CHECKS
from fedpm_lightning.testing.problems import InMemoryClient, classification_clients, regression_clients
from fedpm_lightning.testing.ranks import check_ranks, on_ranks
from fedpm_lightning.testing.rounds import Rounds

__all__ = [
    "METHOD_CHECKS",
    "InMemoryClient",
    "MethodCase",
    "Rounds",
    "advance",
    "check_callback",
    "check_loader",
    "check_ranks",
    "classification_clients",
    "largest_difference",
    "on_ranks",
    "pooled_loss",
    "regression_clients",
]
