from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from fedpm_lightning.models import CNN, MLP, Logistic, ResNet18


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_cnn_of_the_paper():
    model = CNN(num_classes=10)
    assert count(model) == 878_538
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert CNN(10, in_channels=1, image_size=28)(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    assert CNN(10, image_size=16)(torch.zeros(1, 3, 16, 16)).shape == (1, 10)
    with pytest.raises(ValueError, match="at least 16"):
        CNN(image_size=8)


def test_resnet18():
    model = ResNet18(num_classes=100)
    assert count(model) == 11_220_132  # torchvision's 11,227,812 with a 3 x 3 stem and 100 classes
    kinds = {type(m) for m in model.modules()}
    assert nn.GroupNorm in kinds and not any("BatchNorm" in kind.__name__ for kind in kinds)
    assert not list(model.buffers())


@pytest.mark.parametrize("width", [1, 6, 16])
@pytest.mark.parametrize("groups", [1, 2, 32])
def test_resnet18_at_any_width(width, groups):
    model = ResNet18(num_classes=7, width=width, norm_groups=groups, in_channels=1)
    assert model(torch.randn(2, 1, 16, 16)).shape == (2, 7)
    with pytest.raises(ValueError, match="at least 1"):
        ResNet18(width=0)


def test_mlp():
    model = MLP(in_features=64, hidden=[32, 16], num_classes=10)
    assert [tuple(p.shape) for p in model.parameters()] == [(32, 64), (32,), (16, 32), (16,), (10, 16), (10,)]
    assert model(torch.randn(5, 1, 8, 8)).shape == (5, 10)
    assert count(MLP(4, hidden=[], num_classes=3)) == 15
    with pytest.raises(ValueError, match="at least 1"):
        MLP(4, hidden=[0])


def test_logistic():
    model = Logistic(in_features=123, num_classes=1, bias=False, dtype="float64")
    assert count(model) == 123 and all(p.dtype == torch.float64 and not p.any() for p in model.parameters())
    assert model(torch.zeros(4, 123, dtype=torch.float64)).shape == (4, 1)
    assert Logistic(64, 10, zero_init=False)(torch.randn(2, 1, 8, 8)).shape == (2, 10)
    with pytest.raises(ValueError, match="at least 1"):
        Logistic(0)


@pytest.mark.parametrize("model", [CNN(), ResNet18(width=4), MLP(), Logistic()], ids=lambda m: type(m).__name__)
def test_models_copy_and_pickle(model):
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.state_dict().keys() == model.state_dict().keys()
