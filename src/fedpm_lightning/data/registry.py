"""Data set name -> loader. A new kind of data is one function and one line here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedpm_lightning.data.arrays import ArraySet, DataRequest
from fedpm_lightning.data.digits import load_digits
from fedpm_lightning.data.image_specs import SPECS
from fedpm_lightning.data.libsvm import WIDTHS, load_libsvm, test_file, train_file
from fedpm_lightning.data.vision import load_images

Loader = Callable[[DataRequest], ArraySet]

LOADERS: dict[str, Loader] = {
    "digits": load_digits,
    **dict.fromkeys(SPECS, load_images),
    **dict.fromkeys(WIDTHS, load_libsvm),
}
"""The named data sets."""


def load(request: DataRequest) -> ArraySet:
    """Load a data set: a named one, or any image set whose source is a folder or a Hub id.

    Raises:
        ValueError: If the name is unknown and the source does not say where the images are.
        MissingDataError: If the data are not on this machine and cannot be downloaded.
        BrokenDataError: If their content is not what it should be.
    """
    loader = LOADERS.get(request.name)
    if loader is None and request.source == "torchvision":
        raise ValueError(
            f"unknown data set {request.name!r}; data.name is one of "
            f"{', '.join(sorted(LOADERS))}, or any name when data.source is a folder of "
            "images or parquet files or a Hugging Face Hub id"
        )
    return (loader or load_images)(request)


def check_effect(name: str, source: str, width: int | None) -> None:
    """Refuse settings that a named set would not look at.

    Raises:
        ValueError: If a source is given for the digits, or a width for what is no LIBSVM file.
    """
    if name == "digits" and source != "torchvision":
        raise ValueError(
            f"data.source {source!r} has no effect on data.name digits, which come with scikit-learn; leave it out, or "
            "set data.name to the set that lies there"
        )
    if width is not None and name not in WIDTHS:
        raise ValueError(f"data.width {width} has no effect on data.name {name}: it is for LIBSVM files; leave it out")


def has_test_part(name: str, source: str, root: Path) -> bool:
    """Tell, without reading it, whether a set comes with test samples: all do, but LIBSVM files may not.

    Raises:
        MissingDataError: If a LIBSVM set is not on this machine.
    """
    return name not in WIDTHS or test_file(train_file(name, source, root)) is not None
