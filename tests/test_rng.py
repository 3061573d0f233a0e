"""Seeded blocks: their own numbers inside, the caller's afterwards, whatever happens in between."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from fedpm_lightning.rng import _tag, derive_seed, preserve_generators, seeded


def test_a_seeded_block_leaves_the_global_generator_as_it_was():
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    with seeded(0, "client", 2, 5):
        inside = torch.rand(3)
    assert torch.equal(torch.rand(3), expected)
    with seeded(0, "client", 2, 5):
        assert torch.equal(torch.rand(3), inside)
    torch.manual_seed(7)
    with pytest.raises(ZeroDivisionError), seeded(0, "client", 2, 6):
        assert not torch.equal(torch.rand(3), inside)
        raise ZeroDivisionError
    assert torch.equal(torch.rand(3), expected)


def test_a_round_leaves_the_generators_of_python_and_numpy_as_they_were():
    random.seed(1), np.random.seed(1)
    expected = random.random(), np.random.rand()
    random.seed(1), np.random.seed(1)
    with preserve_generators():
        drawn = set()
        for client in (0, 1, 0):
            with seeded(0, "client", 2, client):
                drawn.add((random.random(), np.random.rand()))
    assert len(drawn) == 2 and (random.random(), np.random.rand()) == expected


@pytest.mark.parametrize("words", [(0, 0, 0), (6, 3, 99_999), (2**32 - 1, 1, 2), (2**32, 1, 2), (2**70, 5, 2**33)])
def test_seeds_are_those_of_numpys_own_sequence_however_large(words):
    seed, round, client = words
    state = np.random.SeedSequence([seed, _tag("batches"), round, client]).generate_state(1, np.uint64)[0]
    assert derive_seed(seed, "batches", round, client) == int(state) >> 1
