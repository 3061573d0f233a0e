"""Networks of the experiments."""

from __future__ import annotations

from fedpm_lightning.models.characters import CharTransformer
from fedpm_lightning.models.cnn import CNN
from fedpm_lightning.models.dense import MLP, Logistic
from fedpm_lightning.models.resnet import BasicBlock, ResNet18
from fedpm_lightning.models.vit import ViT

__all__ = ["CNN", "MLP", "BasicBlock", "CharTransformer", "Logistic", "ResNet18", "ViT"]
