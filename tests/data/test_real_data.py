"""CIFAR in the Hugging Face layout, where the machine has it (FEDPM_TEST_DATA)."""

from __future__ import annotations

import pytest
import torch

from fedpm_lightning.data import DataRequest, Dirichlet, FederatedData
from fedpm_lightning.data.arrays import channel_statistics
from fedpm_lightning.data.sources import load
from fedpm_lightning.data.sources.hugging_face import ParquetFolder
from fedpm_lightning.data.sources.torchvision_set import SPECS


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("root")


def test_cifar100(real_data, root):
    data = FederatedData("cifar100", str(real_data / "cifar100"), str(root), num_clients=20, val_fraction=0)
    assert data.num_classes == 100 and data.input_shape == (3, 32, 32)
    assert sum(data.partition_report.sizes) == 10_000
    assert torch.equal(torch.bincount(data.prepared.data.y_train), torch.full((100,), 100))
    mean, std = channel_statistics(data.prepared.data.x_train)
    assert mean == pytest.approx(SPECS["cifar100"].mean, abs=0.01)
    assert std == pytest.approx(SPECS["cifar100"].std, abs=0.01)
    assert len(load(DataRequest("cifar100", str(real_data / "cifar100"), root)).x_test) == 2_000


def test_cifar10_test_part(real_data):
    split = ParquetFolder(real_data / "cifar10", SPECS["cifar10"]).read("test")
    assert split.x.shape == (10_000, 3, 32, 32) and torch.equal(torch.bincount(split.y), torch.full((10,), 1000))
    assert channel_statistics(split.x)[0] == pytest.approx(SPECS["cifar10"].mean, abs=0.01)


@pytest.mark.slow
def test_cifar10_whole(real_data, root):
    source = str(real_data / "cifar10")
    data = FederatedData("cifar10", source, str(root), num_clients=100, partition=Dirichlet(0.1))
    assert sum(data.partition_report.sizes) == 45_000
    x = torch.cat([x for loader in data.val_dataloader() for x, _ in loader])
    assert x.mean().abs() < 0.02 and (x.std() - 1).abs() < 0.02
