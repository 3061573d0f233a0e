"""Seeded blocks: their own numbers inside, the caller's afterwards, whatever happens in between."""

from __future__ import annotations

import pytest
import torch

from fedpm_lightning.rng import seeded


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
