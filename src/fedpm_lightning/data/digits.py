"""scikit-learn's handwritten digits: 1,797 images of 8 x 8 in its wheel, so nothing is downloaded."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fedpm_lightning.data.arrays import ArraySet, DataRequest, channel_statistics
from fedpm_lightning.data.augment import Normalise
from fedpm_lightning.data.holdout import stratified_choice

SPLIT_SEED = 20240
"""The set has no official test part. Ours is the same in every experiment, whatever the experiment's seed."""


def load_digits(request: DataRequest) -> ArraySet:
    """Return the digits: 1,438 training and 359 test images, uint8 [n, 1, 8, 8]; `source` is ignored."""
    from sklearn.datasets import load_digits as embedded

    bunch: Any = embedded()
    # Grey levels 0..16 become 0..255, the range of every other image set.
    images = torch.from_numpy(np.rint(bunch.images * (255 / 16)).astype(np.uint8)).unsqueeze(1)
    labels = np.asarray(bunch.target, dtype=np.int64)
    test = stratified_choice(labels, round(0.2 * len(labels)), np.random.default_rng(SPLIT_SEED))
    train = np.setdiff1d(np.arange(len(labels)), test)
    x_train = images[torch.from_numpy(train)]
    return ArraySet(
        x_train=x_train,
        y_train=torch.from_numpy(labels[train]),
        x_test=images[torch.from_numpy(test)],
        y_test=torch.from_numpy(labels[test]),
        num_classes=10,
        normalise=Normalise(*channel_statistics(x_train)),
    )
