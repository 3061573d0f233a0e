"""Data sets, their partitions over clients, and the DataModule."""

from __future__ import annotations

from fedpm_lightning.data.arrays import ArraySet, DataRequest
from fedpm_lightning.data.augment import Augment, Normalise
from fedpm_lightning.data.batches import BatchSettings, Pool, ResidentClient
from fedpm_lightning.data.dirichlet import Dirichlet, DirichletClients, QuantitySkew
from fedpm_lightning.data.errors import BrokenDataError, MissingDataError
from fedpm_lightning.data.feature_shift import FeatureShift
from fedpm_lightning.data.federated import FederatedData
from fedpm_lightning.data.partition import IID, InOrder, Natural, Partition
from fedpm_lightning.data.partition_report import PartitionReport
from fedpm_lightning.data.shards import Shards

__all__ = [
    "IID",
    "ArraySet",
    "Augment",
    "BatchSettings",
    "BrokenDataError",
    "DataRequest",
    "Dirichlet",
    "DirichletClients",
    "FeatureShift",
    "FederatedData",
    "InOrder",
    "MissingDataError",
    "Natural",
    "Normalise",
    "Partition",
    "PartitionReport",
    "Pool",
    "QuantitySkew",
    "ResidentClient",
    "Shards",
]
