"""Checks of custom callbacks and loaders."""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Callable
from typing import Any

import torch

from fedpm_lightning.data.arrays import ArraySet
from fedpm_lightning.data.sources.custom import array_set, checked
from fedpm_lightning.methods.fedavg import FedAvg
from fedpm_lightning.round import Hooks
from fedpm_lightning.testing.case import MethodCase, advance, largest_difference
from fedpm_lightning.testing.contract import require


def check_callback(make: Callable[[], Hooks], observes: bool = True) -> dict[str, float]:
    """Run two rounds of FedAvg with a callback, or anything else that has a round's hooks.

    Args:
        make: Makes a new one at every call.
        observes: Whether it only looks: the rounds then have the bits of rounds without it.

    Returns:
        The figures of the second round, its own among them.

    Raises:
        AssertionError: If it changes what it should look at, records NaN or infinity, or keeps a state that no
            checkpoint could hold.
    """
    case, callback = MethodCase(lambda: FedAvg(lr=0.1)), make()
    plain, watched = case.start(), case.start(hooks=[callback])
    for run in (plain, watched):
        advance(run, 2)
    row = dict(watched.federation.row)
    if observes:
        gap = largest_difference(plain.theta, watched.theta)
        require(gap == 0, f"the callback moves theta by {gap:.2g}: it should only look (observes=False says otherwise)")
    bad = [name for name, value in row.items() if not math.isfinite(value)]
    require(not bad, f"the callback records {bad} that are not finite")
    state = getattr(callback, "state_dict", dict[str, Any])()
    require(_loadable(state), "its state_dict holds something else than tensors, numbers, strings and containers")
    return row


def _loadable(state: object) -> bool:
    """Whether a checkpoint gives back what it holds without executing code."""
    file = io.BytesIO()
    try:
        torch.save(state, file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except (pickle.PickleError, TypeError):
        return False
    return True


def check_loader(load: Callable[[], object]) -> ArraySet:
    """Call a loader twice, as `data.name` does.

    Args:
        load: The loader, with its `source` and `root` filled in.

    Returns:
        The set.

    Raises:
        BrokenDataError: If what it returns is no data set.
        AssertionError: If two calls differ: a resume would train on other data.
    """
    one, other = (checked(array_set(load(), "the loader"), "the loader") for _ in range(2))
    same = all(torch.equal(getattr(one, part), getattr(other, part)) for part in ("x_train", "y_train", "x_test"))
    require(same and torch.equal(one.y_test, other.y_test), "two calls return other data: seed what is drawn")
    return one
