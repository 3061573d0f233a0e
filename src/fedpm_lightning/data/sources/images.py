"""Image sets from four kinds of source, decoded once into uint8 tensors and kept on disk.

Sources: "torchvision" (downloads), a folder of parquet files, a folder of images, a Hugging Face Hub id.
"""

from __future__ import annotations

import logging
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedpm_lightning.data.arrays import (
    ArraySet,
    DataRequest,
    channel_statistics,
    count_classes,
    number_ids,
    stratified_choice,
)
from fedpm_lightning.data.augment import Normalise
from fedpm_lightning.data.partitions.base import Natural
from fedpm_lightning.data.sources.cache import Tensors, cache_key, cached
from fedpm_lightning.data.sources.decode import ImageSplit
from fedpm_lightning.data.sources.hugging_face import HubSet, ParquetFolder
from fedpm_lightning.data.sources.image_folder import ImageFolder
from fedpm_lightning.data.sources.torchvision_set import SPECS, ImageSpec, TorchvisionSet
from fedpm_lightning.errors import BrokenDataError, MissingDataError

log = logging.getLogger(__name__)


class ImageSource(Protocol):
    """Where an image set comes from."""

    def files(self) -> list[Path]:
        """Return the files behind the set, after a download where one is needed."""
        ...

    def read(self, split: str) -> ImageSplit:
        """Decode "train" or "test"."""
        ...


def locate(request: DataRequest, spec: ImageSpec | None) -> ImageSource:
    """Say what kind of source a request names.

    Raises:
        MissingDataError: If the source is a path that does not exist.
        BrokenDataError: If it is a folder of no known layout.
        ValueError: If torchvision is asked for natural clients, which its files do not name.
    """
    if request.source == "torchvision" and spec is not None:
        if request.group_column is not None:
            raise ValueError(f"torchvision's {request.name} names no clients; use another data.partition")
        return TorchvisionSet(request.root, spec)
    folder = Path(request.source).expanduser()
    if folder.is_dir():
        if ParquetFolder.fits(folder):
            return ParquetFolder(folder, spec, request.group_column)
        if ImageFolder.fits(folder):
            if request.group_column not in (None, Natural.column):
                raise ValueError(
                    f"data.partition.column {request.group_column!r} has no effect on a folder of images, where "
                    "train/<client>/<class> names the clients; leave it out"
                )
            return ImageFolder(folder, spec, by_client=request.group_column is not None)
        raise BrokenDataError(f"{folder}: expected train-*.parquet and test-*.parquet, or folders train/ and test/")
    if folder.is_absolute() or request.source.startswith((".", "~")) or request.source.count("/") > 1:
        size = f" (about {spec.megabytes} MB)" if spec else ""
        raise MissingDataError(
            f"{folder} does not exist; put the parquet files {{train,test}}-*.parquet of "
            f"{request.name}{size} or the image folders train/ and test/ there, or set data.source"
        )
    return HubSet(request.source, spec, request.group_column)


def load_images(request: DataRequest) -> ArraySet:
    """Load an image set, decoding it only when no copy of the same files is kept under `root`/decoded.

    Raises:
        MissingDataError: If the data are not on this machine and cannot be downloaded.
        BrokenDataError: If a file's content is not what it should be.
    """
    spec = SPECS.get(request.name)
    return decoded(locate(request, spec), spec, request)


def decoded(source: ImageSource, spec: ImageSpec | None, request: DataRequest) -> ArraySet:
    """Return the images of a source, decoded now or kept from before.

    Args:
        source: Where they come from.
        spec: Facts about a known set, or None.
        request: Names the set, and the folder of decoded copies.
    """
    settings = {"name": request.name, "kind": type(source).__name__, "groups": request.group_column}
    if request.label_column or request.input_columns:
        settings |= {"label": request.label_column, "inputs": request.input_columns}
    path = request.root / "decoded" / f"{request.name}-{cache_key(source.files(), **settings)}.pt"
    names = ["x_train", "y_train", "x_test", "y_test"] + (["groups"] if request.group_column else [])
    tensors = cached(path, names, lambda: _decode(source, spec, f"{request.name} ({request.source})", path))
    x, y = tensors["x_train"], tensors["y_train"]
    statistics = (spec.mean, spec.std) if spec else channel_statistics(x)
    return ArraySet(
        x_train=x,
        y_train=y,
        x_test=tensors["x_test"],
        y_test=tensors["y_test"],
        num_classes=spec.num_classes if spec else int(y.max()) + 1,
        groups=tensors.get("groups"),
        normalise=Normalise(*statistics),
        augment=spec.augment if spec else None,
    )


def _decode(source: ImageSource, spec: ImageSpec | None, place: str, path: Path) -> Tensors:
    log.info("decoding images once; the copy is kept in %s", path)
    train, test = source.read("train"), source.read("test")
    if train.x.shape[1:] != test.x.shape[1:]:
        shapes = f"{list(train.x.shape[1:])} and {list(test.x.shape[1:])}"
        raise BrokenDataError(f"{place}: training and test images differ in shape, {shapes} [c, h, w]")
    _check_classes(train.y, test.y, spec, place)
    tensors = {"x_train": train.x, "y_train": train.y, "x_test": test.x, "y_test": test.y}
    if train.groups is not None:
        tensors["groups"] = number_ids(train.groups, place)
    return tensors


def _check_classes(train: Tensor, test: Tensor, spec: ImageSpec | None, place: str) -> None:
    """Refuse another set's files under a known name, and a stray label that would set the number of classes."""
    top, found = count_classes(train, place) - 1, len(train.unique())
    if spec is not None and found != spec.num_classes:
        raise BrokenDataError(f"{place}: training images of {found} classes, expected all {spec.num_classes}")
    if int(test.max()) > top:
        raise BrokenDataError(f"{place}: test label {int(test.max())}, expected 0..{top} as in the training part")


DIGITS_SPLIT_SEED = 20240
"""The digits have no official test part. Ours is the same in every experiment, whatever the experiment's seed."""


def _embedded_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return scikit-learn's digits: grey levels [n, 8, 8] in 0..16 and labels [n], int64."""
    found = find_spec("sklearn")  # which importing would take half of a second, with pandas
    file = Path(found.origin or "").parent / "datasets" / "data" / "digits.csv.gz" if found else Path()
    if file.is_file():
        table = np.loadtxt(file, delimiter=",")
        return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits as embedded

    bunch: Any = embedded()
    return bunch.images, np.asarray(bunch.target, dtype=np.int64)


def load_digits(request: DataRequest) -> ArraySet:
    """Return the digits: 1,438 training and 359 test images, uint8 [n, 1, 8, 8]; `source` is ignored."""
    pixels, labels = _embedded_digits()
    # Grey levels 0..16 become 0..255, the range of every other image set.
    images = torch.from_numpy(np.rint(pixels * (255 / 16)).astype(np.uint8)).unsqueeze(1)
    test = stratified_choice(labels, round(0.2 * len(labels)), np.random.default_rng(DIGITS_SPLIT_SEED))
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
