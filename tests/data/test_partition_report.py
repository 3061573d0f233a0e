from __future__ import annotations

import json

import numpy as np

from fedpm_lightning.data import Dirichlet, PartitionReport
from fedpm_lightning.data.partitions.report import partition_hash

LABELS = np.random.default_rng(0).integers(0, 5, 300)


def report(seed: int = 0) -> PartitionReport:
    partition = Dirichlet(0.2)
    return PartitionReport.build(partition.split(LABELS, 6, seed), LABELS, 7, partition.describe(), seed)


def test_histogram_is_recounted_from_the_labels():
    parts = Dirichlet(0.2).split(LABELS, 6, 0)
    for k, part in enumerate(parts):
        assert report().histogram[k] == [int((LABELS[part] == c).sum()) for c in range(7)]
        assert report().sizes[k] == len(part)


def test_hash_tells_splits_apart():
    assert report().sha256 == report().sha256 != report(1).sha256
    one, other = [np.array([0, 1]), np.array([2])], [np.array([0]), np.array([1, 2])]
    assert partition_hash(one) != partition_hash(other)
    # A known value: the hash must not change between versions or machines.
    assert partition_hash(one).startswith(KNOWN)


KNOWN = "4c152be4bb1a4f40"


def test_plain_json_types():
    read = json.loads(json.dumps(report().to_dict()))
    assert read == report().to_dict()
    assert read["partition"] == {"kind": "Dirichlet", "arguments": {"alpha": 0.2, "min_samples": 1}}
    assert read["num_clients"] == 6 and read["num_samples"] == 300
    assert "6 clients" in report().summary()
