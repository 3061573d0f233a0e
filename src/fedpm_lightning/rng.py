"""Counter-based randomness: every draw is a pure function of (seed, purpose, round, client).

Nothing here keeps state. The order in which clients run, the number of data workers, evaluation, logging and a
resume in the middle of an experiment therefore change no draw, and there is no generator state to checkpoint.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache

import numpy as np
import torch
from torch import Tensor


def derive_seed(seed: int, purpose: str, round: int = 0, client: int = 0) -> int:
    """Return a 63-bit seed for one use of randomness.

    Args:
        seed: The experiment's seed, any non-negative integer.
        purpose: What the numbers are for ("cohort", "batches", "client", ...). Two purposes never share draws.
        round: 0-based communication round.
        client: Client id.

    Returns:
        An integer in [0, 2**63).
    """
    entropy: Sequence[int] | np.ndarray = (seed, _tag(purpose), round, client)
    if max(entropy) < 2**32:  # the same entropy in one array, which is twice as fast
        entropy = np.array(entropy, np.uint32)
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0]) >> 1


@cache
def _tag(purpose: str) -> int:
    """Return a stable digest, because hash(str) differs from one Python process to the next."""
    return int.from_bytes(hashlib.blake2s(purpose.encode(), digest_size=4).digest(), "little")


def torch_generator(seed: int, purpose: str, round: int = 0, client: int = 0) -> torch.Generator:
    """Return a CPU `torch.Generator` seeded by `derive_seed`: the same numbers whatever the training device is."""
    return torch.Generator().manual_seed(derive_seed(seed, purpose, round, client))


def numpy_generator(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.Generator:
    """Return a NumPy generator seeded by `derive_seed`."""
    return np.random.default_rng(derive_seed(seed, purpose, round, client))


def sample_cohort(seed: int, round: int, num_clients: int, size: int) -> list[int]:
    """Draw the cohort S_t of a round: `size` clients of `num_clients`, uniformly, without replacement, sorted.

    Args:
        seed: The experiment's seed.
        round: 0-based communication round.
        num_clients: N.
        size: |S_t|, in 1..N.

    Returns:
        The sorted client ids.

    Raises:
        ValueError: If `size` is outside 1..num_clients.
    """
    if not 1 <= size <= num_clients:
        raise ValueError(f"cohort size {size} is outside 1..{num_clients} (the number of clients)")
    if size == num_clients:
        return list(range(num_clients))
    chosen = numpy_generator(seed, "cohort", round).choice(num_clients, size=size, replace=False)
    return sorted(int(k) for k in chosen)


def sample_by_size(seed: int, round: int, sizes: Sequence[int], size: int) -> list[int]:
    """Draw `size` clients one after another without replacement, each with probability n_k over those left, sorted.

    Where fewer clients than `size` hold samples, all of them come, and the first ones without.

    Args:
        seed: The experiment's seed.
        round: 0-based communication round.
        sizes: n_k of every client.
        size: |S_t|, in 1..N.
    """
    n = np.asarray(sizes, dtype=np.float64)
    order = sorted(range(len(n)), key=lambda k: (n[k] == 0, k))
    if size >= np.count_nonzero(n):
        return sorted(order[:size])
    chosen = numpy_generator(seed, "cohort", round).choice(len(n), size=size, replace=False, p=n / n.sum())
    return sorted(int(k) for k in chosen)


@contextmanager
def seeded(seed: int, purpose: str, round: int, client: int, devices: Sequence[torch.device] = ()) -> Generator[None]:
    """Seed torch's global generators inside the block (dropout draws from them) and restore them afterwards.

    Those of `random` and NumPy are seeded too; `preserve_generators` around a whole round restores them, because that
    takes ten times as long as seeding.
    """
    # Not torch.manual_seed: for every accelerator that torch was built for and has not started it stores a formatted
    # stack, at each call.
    number, cuda = derive_seed(seed, purpose, round, client), [d for d in devices if d.type == "cuda"]
    state = torch.default_generator.get_state()
    try:
        with torch.random.fork_rng(devices=cuda) if cuda else nullcontext():  # slow, and once a client
            torch.default_generator.manual_seed(number)
            random.seed(number)
            np.random.seed(number % 2**32)
            for device in cuda:
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(number)
            yield
    finally:
        torch.default_generator.set_state(state)


@contextmanager
def preserve_generators() -> Generator[None]:
    """Give the global generators of `random` and NumPy their state back after the block."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def permutation(n: int, generator: torch.Generator) -> Tensor:
    """Return a random permutation of 0..n-1, int64 [n], on the CPU."""
    return torch.randperm(n, generator=generator)
