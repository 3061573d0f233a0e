"""Custom data sets: `data.name` is the import path of a function or class that returns the data.

It may return an `ArraySet`; arrays or tensors (x_train, y_train, x_test, y_test), in pairs or not, or the first two
alone; the same by name in a dictionary, with the client of each training sample (`groups`) if there is one; or one or
two torch Datasets of (input, target). Arguments named `source` and `root` are given data.source and
data.root; a callable with an argument `train`, as torchvision's classes have, is called for each of the two parts.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from fedpm_lightning.checks import is_mapping, is_sequence
from fedpm_lightning.data.arrays import ArraySet, channel_statistics, count_classes, with_clients
from fedpm_lightning.data.augment import Normalise
from fedpm_lightning.errors import BrokenDataError, MissingDataError, first_line

Loader = Callable[..., Any]

PARTS = ("x_train", "y_train", "x_test", "y_test")
"""What a dictionary may hold beside `groups` and `test_groups`; the first two must be there."""


def find_custom(name: str, source: str) -> Loader:
    """Import what `data.name` names.

    Raises:
        ValueError: If there is no such function or class, or `source` is given and it does not ask for one.
    """
    try:
        loader: Any = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as cause:
        raise ValueError(
            f"data.name {name!r} cannot be imported ({first_line(cause)}); a name with dots is the import path of a "
            f"function or class that returns the data, looked for on PYTHONPATH and in {Path.cwd()}"
        ) from None
    if not callable(loader):
        raise ValueError(f"data.name {name!r} is {type(loader).__name__}, expected a function or class")
    if source != "torchvision" and "source" not in inspect.signature(loader).parameters:
        raise ValueError(f"data.source {source!r} has no effect on data.name {name}, which has no argument `source`")
    return loader


@lru_cache(maxsize=1)
def load_custom(name: str, source: str, root: Path) -> ArraySet:
    """Call the function or class that `data.name` names and check what it returns.

    Raises:
        ValueError: If it fails or returns anything else.
    """
    loader = find_custom(name, source)
    parameters = inspect.signature(loader).parameters
    given = {"root": root} if "root" in parameters else {}
    given |= {"source": source} if "source" in parameters and source != "torchvision" else {}
    try:
        splits = [loader(**given, train=train) for train in (True, False)] if "train" in parameters else None
        result = splits or loader(**given)
        return checked(array_set(result, f"data.name {name}"), f"data.name {name}")
    except (BrokenDataError, MissingDataError):
        raise
    except Exception as cause:
        raise ValueError(f"data.name {name} failed: {type(cause).__name__}: {first_line(cause)}") from cause


def array_set(result: object, place: str) -> ArraySet:
    """Turn what a loader returned into an ArraySet.

    Raises:
        BrokenDataError: If it is none of the known forms.
    """
    if isinstance(result, ArraySet):
        return result
    if is_mapping(result):
        return _by_name(result, place)
    parts: list[Any] = list(result) if is_sequence(result) else [result]
    if parts and all(isinstance(part, Dataset | tuple) for part in parts):
        parts = [column for part in parts for column in (part if isinstance(part, tuple) else stacked(part))]
    if len(parts) not in (2, 4) or not all(hasattr(part, "__len__") for part in parts):
        found = f"{type(result).__name__} of {', '.join(type(part).__name__ for part in parts)}"
        raise BrokenDataError(
            f"{place}: expected an ArraySet, (x_train, y_train, x_test, y_test), (x_train, y_train), the same by name "
            f"in a dictionary, or one or two torch Datasets; got {found}"
        )
    inputs, targets = [as_inputs(tensor(x)) for x in parts[::2]], [as_targets(y, place) for y in parts[1::2]]
    x_train, y_train = inputs[0], targets[0]
    return ArraySet(
        x_train=x_train,
        y_train=y_train,
        x_test=inputs[-1] if len(parts) == 4 else x_train[:0],
        y_test=targets[-1] if len(parts) == 4 else y_train[:0],
        num_classes=count_classes(y_train, place),
        normalise=Normalise(*channel_statistics(x_train)) if x_train.dtype == torch.uint8 else None,
        follows_precision=True,
    )


def _by_name(parts: Mapping[str, object], place: str) -> ArraySet:
    """Return the set of a dictionary of parts."""
    if not {*PARTS[:2]} <= parts.keys() <= {*PARTS, "groups", "test_groups"}:
        raise BrokenDataError(
            f"{place}: a dictionary of {', '.join(parts)}; expected x_train and y_train, and if you like x_test and "
            "y_test, and groups and test_groups, the client of each training and test sample"
        )
    data = array_set([parts[name] for name in PARTS if name in parts], place)
    if parts.get("groups") is None:
        return data
    tests = parts.get("test_groups")
    tests = None if tests is None else np.asarray(tests).tolist()
    return with_clients(data, np.asarray(parts["groups"]).tolist(), tests, f"{place}, groups")


def stacked(dataset: Any) -> tuple[Tensor, Tensor]:
    """Return the inputs [n, ...] and the targets [n] of a torch Dataset, its transforms applied once."""
    inputs, targets = zip(*(dataset[i] for i in range(len(dataset))), strict=True)
    return torch.stack([tensor(x) for x in inputs]), tensor([int(y) for y in targets])


def tensor(values: object) -> Tensor:
    """Return an array, a tensor, a list or a Pillow image as a tensor."""
    return values if isinstance(values, Tensor) else torch.as_tensor(np.array(values))


def as_targets(y: object, place: str) -> Tensor:
    """Return targets as a tensor.

    Raises:
        BrokenDataError: If they are words.
    """
    if not isinstance(y, Tensor) and (values := np.asarray(y)).dtype.kind in "UOS":
        raise BrokenDataError(f"{place}: targets such as {values.flat[0]!s}, expected whole numbers from 0")
    return tensor(y)


def as_inputs(x: Tensor) -> Tensor:
    """Return uint8 images [n, h, w] or [n, h, w, c] as [n, c, h, w], other whole numbers (token ids) as int64.

    Truth values become 0.0 and 1.0; floating inputs stay as they are.
    """
    if x.dtype == torch.bool:
        return x.float()
    if x.dtype != torch.uint8 and not x.is_floating_point():
        return x.long()
    if x.dtype == torch.uint8 and x.dim() == 3:
        return x.unsqueeze(1)
    if x.dtype == torch.uint8 and x.dim() == 4 and x.shape[1] not in (1, 3) and x.shape[3] in (1, 3):
        return x.permute(0, 3, 1, 2).contiguous()
    return x


def checked(data: ArraySet, place: str) -> ArraySet:
    """Return a set whose parts agree, with int64 targets.

    Raises:
        BrokenDataError: With what was expected.
    """
    for part, x, y in (("training", data.x_train, data.y_train), ("test", data.x_test, data.y_test)):
        if y.dim() != 1 or len(x) != len(y) or y.is_floating_point():
            found = f"{list(x.shape)} and {list(y.shape)} of {str(y.dtype).removeprefix('torch.')}"
            raise BrokenDataError(
                f"{place}: {part} inputs and targets of shapes {found}, expected [n, ...] and [n] of whole numbers"
            )
        if len(y) and not 0 <= int(y.min()) <= int(y.max()) < data.num_classes:
            top = "whole numbers from 0" if y.min() < 0 else f"0..{data.num_classes - 1} as in the training part"
            raise BrokenDataError(f"{place}: {part} targets {int(y.min())} to {int(y.max())}, expected {top}")
        if x.dtype == torch.int64 and x.numel() and int(x.min()) < 0:
            row = int((x.flatten(1) < 0).any(1).nonzero()[0])
            raise BrokenDataError(f"{place}: a negative token id in row {row} of the {part} inputs, expected 0 or more")
        if x.is_floating_point() and not bool(torch.isfinite(x).all()):
            row = int((~torch.isfinite(x.flatten(1)).all(1)).nonzero()[0])
            raise BrokenDataError(f"{place}: NaN or infinity in row {row} of the {part} inputs")
    if not len(data.y_train) or data.x_train.shape[1:] != data.x_test.shape[1:]:
        shapes = f"{list(data.x_train.shape)} and {list(data.x_test.shape)}"
        raise BrokenDataError(f"{place}: training and test inputs {shapes}, expected samples of one shape")
    if data.groups is not None and data.groups.shape != data.y_train.shape:
        raise BrokenDataError(
            f"{place}: groups of shape {list(data.groups.shape)}, expected a client id for each of the "
            f"{len(data.y_train)} training samples"
        )
    if data.test_groups is not None and data.test_groups.shape != data.y_test.shape:
        raise BrokenDataError(
            f"{place}: test_groups of shape {list(data.test_groups.shape)}, expected a client id for each of the "
            f"{len(data.y_test)} test samples"
        )
    if data.groups is not None and data.client_names and not 0 <= int(data.groups.max()) < len(data.client_names):
        raise BrokenDataError(
            f"{place}: client ids up to {int(data.groups.max())}, expected at most {len(data.client_names) - 1} with "
            f"{len(data.client_names)} client_names"
        )
    return replace(data, y_train=data.y_train.long(), y_test=data.y_test.long())
