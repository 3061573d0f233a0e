"""Data sets, their partitions over clients, and the DataModule."""

from __future__ import annotations

from fedpm_lightning.data.arrays import ArraySet, DataRequest
from fedpm_lightning.data.augment import Augment, Normalise
from fedpm_lightning.data.batches import BatchSettings, Pool, ResidentClient
from fedpm_lightning.data.federated import FederatedData
from fedpm_lightning.data.partitions.base import IID, InOrder, Natural, Partition
from fedpm_lightning.data.partitions.dirichlet import Dirichlet, DirichletClients, QuantitySkew
from fedpm_lightning.data.partitions.report import PartitionReport
from fedpm_lightning.data.partitions.skew import FeatureShift, Shards
from fedpm_lightning.data.sources.tables import from_frames
from fedpm_lightning.errors import BrokenDataError, MissingDataError

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
    "from_frames",
]
