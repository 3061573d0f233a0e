from __future__ import annotations

import pytest
import torch

from fedpm_lightning.data import Augment, FeatureShift, Normalise
from fedpm_lightning.data.arrays import channel_statistics
from fedpm_lightning.data.partitions.skew import rotate
from fedpm_lightning.rng import torch_generator

CPU = torch.device("cpu")


def images(n: int = 16, size: int = 8, channels: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (n, channels, size, size), dtype=torch.uint8, generator=generator)


def test_equals_the_crop_and_flip_of_one_image_at_a_time():
    x, augment = images(32), Augment(pad=3)
    draws = augment.draw(32, torch_generator(0, "x"), CPU)
    out = augment(x, draws)
    assert out.dtype == torch.uint8 and out.shape == x.shape
    for i in range(32):
        padded = torch.nn.functional.pad(x[i], (3, 3, 3, 3))
        r, c = int(draws.rows[i]), int(draws.columns[i])
        expected = padded[:, r : r + 8, c : c + 8]
        expected = expected.flip(-1) if draws.flips[i] else expected
        assert torch.equal(out[i], expected)


def test_draws_cover_their_range_and_slice_like_the_batch():
    draws = Augment(pad=4).draw(4000, torch_generator(0, "x"), CPU)
    assert set(draws.rows.tolist()) == set(draws.columns.tolist()) == set(range(9))
    assert not torch.equal(draws.rows, draws.columns)
    assert 0.45 < draws.flips.float().mean() < 0.55
    assert torch.equal(draws[5:9].rows, draws.rows[5:9])


def test_without_flip_or_crop():
    x = images()
    nothing = Augment(pad=0, flip=False)
    assert torch.equal(nothing(x, nothing.draw(16, torch_generator(0, "x"), CPU)), x)
    mirror = Augment(pad=0, flip=True)
    draws = mirror.draw(16, torch_generator(0, "x"), CPU)
    assert torch.equal(mirror(x, draws)[draws.flips], x[draws.flips].flip(-1))


def test_normalise_and_its_dtype():
    x = images(500)
    mean, std = channel_statistics(x)
    assert mean == pytest.approx((x / 255.0).mean(dim=(0, 2, 3)).tolist(), abs=1e-5)
    assert std == pytest.approx((x / 255.0).std(dim=(0, 2, 3)).tolist(), abs=1e-4)
    out = Normalise(mean, std)(x)
    assert out.dtype == torch.float32
    assert torch.allclose(out.mean(dim=(0, 2, 3)), torch.zeros(3), atol=1e-5)
    exact = Normalise(mean, std).to(torch.float64)(x)
    centre, scale = (torch.tensor(v, dtype=torch.float64).view(3, 1, 1) for v in (mean, std))
    assert exact.dtype == torch.float64 and torch.allclose(exact, (x.double() / 255 - centre) / scale, rtol=1e-14)


def test_normalise_rejects_nonsense():
    with pytest.raises(ValueError, match="positive std"):
        Normalise((0.5,), (0.0,))
    assert channel_statistics(torch.zeros(4, 1, 2, 2, dtype=torch.uint8))[1][0] > 0


def test_noise_grows_with_the_client_and_leaves_the_first_alone():
    x, shift = torch.zeros(1000, 10), FeatureShift("noise", 2.0)
    noise = torch.randn(x.shape, generator=torch_generator(0, "s"))
    for k in range(5):
        assert torch.equal(shift.shift(x, k, 5, noise), 0.5 * k * noise)
    assert shift.shift(x, 0, 1, noise) is x
    with pytest.raises(ValueError, match="needs the noise"):
        shift.shift(x, 1, 5)


def test_rotation():
    x = torch.randn(2, 3, 9, 9)
    assert torch.allclose(rotate(x, 90), torch.rot90(x, 1, dims=(2, 3)), atol=1e-5)
    assert torch.allclose(rotate(x, 180), x.flip((2, 3)), atol=1e-5)
    wide = torch.randn(1, 1, 4, 8)
    assert torch.allclose(rotate(wide, 180), wide.flip((2, 3)), atol=1e-5)
    with pytest.raises(ValueError, match="needs images"):
        rotate(torch.zeros(3, 4), 10)


@pytest.mark.parametrize(("kind", "level"), [("blur", 1), ("noise", -1), ("noise", float("nan"))])
def test_feature_shift_arguments(kind, level):
    with pytest.raises(ValueError, match="must be"):
        FeatureShift(kind, level)
