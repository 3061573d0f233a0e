"""How training samples are spread over clients: a pure function of (labels, kind, arguments, seed).

`Partition.split` is the whole interface. It checks its input, lets the subclass assign samples, and verifies
that the result is disjoint and, unless the kind says otherwise, complete.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from fedpm_lightning.rng import numpy_generator

log = logging.getLogger(__name__)

Labels = NDArray[Any]
Indices = NDArray[np.int64]


class Partition(ABC):
    """Base of all partitions.

    Attributes:
        complete: Whether every sample belongs to a client.
        shifts_inputs: Whether `shift` changes a client's inputs.
        group_column: Name of the source's column with client ids, for partitions that follow it.
    """

    complete: ClassVar[bool] = True
    shifts_inputs: ClassVar[bool] = False

    @property
    def adds_noise(self) -> bool:
        """Whether `shift` needs the noise of the samples."""
        return False

    @property
    def group_column(self) -> str | None:
        """The source's column of client ids, or None when the partition does not follow one."""
        return None

    def split(self, labels: Labels, num_clients: int, seed: int, groups: Labels | None = None) -> list[Indices]:
        """Assign samples to clients.

        Args:
            labels: Class of every sample, [n].
            num_clients: N.
            seed: The experiment's seed.
            groups: Client id of every sample as the source names it, [n]; only `Natural` reads it.

        Returns:
            N sorted int64 index arrays, pairwise disjoint.

        Raises:
            ValueError: If the samples cannot be spread over so many clients in this way.
        """
        labels = np.asarray(labels)
        if labels.ndim != 1:
            raise ValueError(f"labels must be one number a sample, [n]; got shape {list(labels.shape)}")
        if num_clients < 1:
            raise ValueError(f"num_clients must be at least 1, got {num_clients}")
        parts = self._assign(labels, num_clients, numpy_generator(seed, "partition"), groups)
        parts = [np.sort(np.asarray(part, dtype=np.int64)) for part in parts]
        self._verify(parts, len(labels), num_clients)
        return parts

    def choose(self, groups: Labels, num_clients: int, seed: int) -> Labels | None:
        """Return the ids of the clients that take part, of those that the source names; None: the whole set is spread.

        Args:
            groups: Client id of every training sample, validation samples included, [n].
            num_clients: N.
            seed: The experiment's seed.
        """
        return None

    @abstractmethod
    def _assign(self, labels: Labels, num_clients: int, rng: Generator, groups: Labels | None) -> list[Indices]:
        """Return one index array a client, in any order."""

    def _verify(self, parts: list[Indices], num_samples: int, num_clients: int) -> None:
        owners = np.bincount(np.concatenate(parts), minlength=num_samples)
        if len(parts) != num_clients or len(owners) > num_samples or owners.max(initial=0) > 1:
            raise ValueError(f"{type(self).__name__} must give {num_clients} disjoint index arrays, and did not")
        if self.complete and owners.min(initial=1) < 1:
            raise ValueError(f"{type(self).__name__} left {int((owners == 0).sum())} samples without a client")

    def shift(self, x: Tensor, client: int, num_clients: int, noise: Tensor | None = None) -> Tensor:
        """Return a client's version of normalised float inputs [b, ...]; the base changes nothing."""
        return x

    def describe(self) -> dict[str, Any]:
        """Return the kind and its arguments as plain JSON types."""
        arguments = {f.name: getattr(self, f.name) for f in fields(self)} if is_dataclass(self) else {}
        return {"kind": type(self).__name__, "arguments": arguments}


def need_samples(num_samples: int, needed: int, num_clients: int, kind: str) -> None:
    """Raise a ValueError unless there are at least `needed` samples."""
    if num_samples < needed:
        raise ValueError(
            f"{kind}: {num_samples} samples are too few for {num_clients} clients ({needed} are needed); "
            "lower data.num_clients or use more training samples"
        )


@dataclass(frozen=True)
class IID(Partition):
    """Uniformly at random, sizes equal to within one sample."""

    def _assign(self, labels: Labels, num_clients: int, rng: Generator, groups: Labels | None) -> list[Indices]:
        need_samples(len(labels), num_clients, num_clients, "IID")
        return np.array_split(rng.permutation(len(labels)), num_clients)


@dataclass(frozen=True)
class InOrder(Partition):
    """Contiguous blocks in file order, all of m rows: client k owns rows k*m .. (k+1)*m - 1.

    Rows after the first N*m belong to no client (a log line counts them).

    Args:
        clients_size: m, rows a client; None takes as many as fit, n // N.

    Raises:
        ValueError: If `clients_size` is below 1.
    """

    clients_size: int | None = None
    complete: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.clients_size is not None and self.clients_size < 1:
            raise ValueError(f"clients_size must be at least 1 row or null, got {self.clients_size}")

    def _assign(self, labels: Labels, num_clients: int, rng: Generator, groups: Labels | None) -> list[Indices]:
        size = self.clients_size or max(1, len(labels) // num_clients)
        used = size * num_clients
        need_samples(len(labels), used, num_clients, f"InOrder with {size} rows a client")
        if used < len(labels):
            log.info("InOrder: %d of %d rows belong to no client", len(labels) - used, len(labels))
        return np.split(np.arange(used), num_clients)


@dataclass(frozen=True)
class Natural(Partition):
    """The source itself names the client of every sample: one client for each distinct id, in sorted order.

    Where only some of them take part, the test samples are those of the same clients, if the source names them too.

    Args:
        column: The parquet or Hub column with the ids. In an image folder the ids are the folders between the
            split and the classes (train/<client>/<class>/*.png), and no column is named.
        clients: Which N of them take part: all (then N is their number), the N with the most samples (largest), or any
            N, drawn by the seed (random).
        min_samples: Training samples, validation included, below which a client does not count.

    Raises:
        ValueError: If `clients` is none of these, or `min_samples` is below 1.
    """

    column: str = "client_id"
    clients: Literal["all", "largest", "random"] = "all"
    min_samples: int = 1

    def __post_init__(self) -> None:
        if self.clients not in ("all", "largest", "random"):
            raise ValueError(f"clients must be all, largest or random, got {self.clients!r}")
        if self.min_samples < 1:
            raise ValueError(f"min_samples must be at least 1, got {self.min_samples}")

    @property
    def group_column(self) -> str | None:
        """The source's column of client ids."""
        return self.column

    def choose(self, groups: Labels, num_clients: int, seed: int) -> Labels:
        """Return the ids of the clients that take part, sorted."""
        ids, sizes = np.unique(groups, return_counts=True)
        ids, sizes = ids[sizes >= self.min_samples], sizes[sizes >= self.min_samples]
        if len(ids) < num_clients or (self.clients == "all" and len(ids) != num_clients):
            enough = "" if self.min_samples == 1 else f" with at least {self.min_samples} samples"
            some = "" if len(ids) < num_clients else ", or data.partition.clients to largest or random"
            raise ValueError(
                f"Natural: the source names {len(ids)} clients{enough} but num_clients is {num_clients}; "
                f"set data.num_clients to {len(ids)}{some}"
            )
        if self.clients == "random":
            return np.sort(numpy_generator(seed, "natural-clients").choice(ids, num_clients, replace=False))
        # A stable sort: of equal sizes the first id.
        return np.sort(ids[np.argsort(-sizes, kind="stable")[:num_clients]])

    def _assign(self, labels: Labels, num_clients: int, rng: Generator, groups: Labels | None) -> list[Indices]:
        if groups is None or len(groups) != len(labels):
            raise ValueError("Natural needs a client id for every sample, and this data set has none")
        # Those of `choose`: of what is held out since then, min_samples knows nothing.
        ids = Natural(self.column).choose(groups, num_clients, seed=0)
        return [np.flatnonzero(groups == k) for k in ids]
