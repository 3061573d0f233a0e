"""Callbacks of rounds need the module that runs them."""

from __future__ import annotations

import pytest
from lightning.pytorch import LightningModule
from torch import nn

from fedpm_lightning.callbacks.base import federation_of
from fedpm_lightning.methods import FedAvg
from fedpm_lightning.trainer.module import FederatedModule


def test_a_callback_finds_the_federation_or_says_what_it_needs():
    module = FederatedModule(nn.Linear(2, 2), FedAvg())
    assert federation_of(module) is module.federation
    with pytest.raises(TypeError, match=r"LightningModule runs no federation: .* need FederatedModule"):
        federation_of(LightningModule())
