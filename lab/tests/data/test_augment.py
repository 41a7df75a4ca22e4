"""Pictures changed a little: as far as was said, each on its own, and never out of range."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import ndimage, stats
from tests.helpers import seeded
from torch import Tensor

from sparsewire_lab.data import load_digits
from sparsewire_lab.data.augment import jitter

ANGLE, TALL, WIDE, SHEAR, DOWN, RIGHT = range(6)
"""The order in which they are drawn."""

Plant = Callable[[dict[int, float]], None]


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Let certain numbers from -1 to 1 be drawn, and zero for all that are not given."""

    def put(drawn: dict[int, float]) -> None:
        def rand(kinds: int, count: int, **_: object) -> Tensor:
            numbers = torch.zeros(kinds, count)
            for kind, number in drawn.items():
                numbers[kind] = number
            return (numbers + 1) / 2

        monkeypatch.setattr(torch, "rand", rand)

    return put


def some_pictures(count: int = 3, side: int = 28) -> Tensor:
    return torch.rand(count, 1, side, side, generator=seeded(0))


def moved(picture: Tensor, matrix: list[list[float]]) -> Tensor:
    """SciPy's: each pixel reads at the product of a matrix and its row and column.

    Both are counted from the middle of the picture.
    """
    around = np.array(matrix)
    middle = (np.array(picture.shape) - 1) / 2
    offset: Any = middle - around @ middle
    done = ndimage.affine_transform(
        picture.double().numpy(), around, offset, order=1, mode="grid-constant"
    )
    return torch.from_numpy(done).float()


def test_no_strength_changes_nothing() -> None:
    x = some_pictures()
    torch.testing.assert_close(jitter(x, 0.0), x, rtol=0, atol=1e-5)


@pytest.mark.parametrize("side", [28, 14])
@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("kind", [DOWN, RIGHT])
def test_pictures_are_shifted_by_up_to_2_of_28_pixels(
    kind: int, sign: int, side: int, plant: Plant
) -> None:
    """What comes from outside is black."""
    x, by, axis = some_pictures(side=side), 2 * side // 28, 2 if kind == DOWN else 3
    plant({kind: float(sign)})
    want = torch.zeros_like(x)
    kept = side - by
    start, end = (by, 0) if sign > 0 else (0, by)
    want.narrow(axis, end, kept).copy_(x.narrow(axis, start, kept))
    torch.testing.assert_close(jitter(x), want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("strength", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("sign", [-1, 1])
def test_pictures_are_turned_by_up_to_12_degrees(sign: int, strength: float, plant: Plant) -> None:
    x = some_pictures()
    plant({ANGLE: float(sign)})
    cos, sin = (f(sign * strength * math.radians(12)) for f in (math.cos, math.sin))
    want = torch.stack([moved(picture, [[cos, sin], [-sin, cos]]) for picture in x[:, 0]])
    torch.testing.assert_close(jitter(x, strength)[:, 0], want, rtol=0, atol=1e-4)


@pytest.mark.parametrize("strength", [0.5, 1.0])
@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("kind", [TALL, WIDE, SHEAR])
def test_pictures_are_scaled_by_up_to_12_percent_and_sheared_by_up_to_a_fifth(
    kind: int, sign: int, strength: float, plant: Plant
) -> None:
    x = some_pictures()
    plant({kind: float(sign)})
    by = sign * strength
    matrix = {
        TALL: [[1 + 0.12 * by, 0.0], [0.0, 1.0]],
        WIDE: [[1.0, 0.0], [0.0, 1 + 0.12 * by]],
        SHEAR: [[1.0, 0.0], [0.2 * by, 1.0]],
    }[kind]
    want = torch.stack([moved(picture, matrix) for picture in x[:, 0]])
    torch.testing.assert_close(jitter(x, strength)[:, 0], want, rtol=0, atol=1e-4)


def test_all_of_them_together_are_one_affine_map(plant: Plant) -> None:
    x = some_pictures()
    plant({ANGLE: 0.5, TALL: -0.25, WIDE: 0.75, SHEAR: -1.0})
    cos, sin = math.cos(math.radians(6)), math.sin(math.radians(6))
    tall, wide = 0.97, 1.09
    matrix = [[cos * tall, sin * wide], [-sin * tall - 0.2, cos * wide]]
    want = torch.stack([moved(picture, matrix) for picture in x[:, 0]])
    torch.testing.assert_close(jitter(x)[:, 0], want, rtol=0, atol=1e-4)


@pytest.mark.parametrize("axis", [2, 3])
@pytest.mark.parametrize("strength", [0.5, 1.0])
def test_shifts_are_uniform_on_both_sides(strength: float, axis: int) -> None:
    """By the middle of a slope, which nothing but a shift moves."""
    slope = torch.arange(29.0).sub(14).view((29, 1) if axis == 2 else (1, 29))
    found = jitter(slope.expand(2000, 1, 29, 29), strength, seeded(1))[:, 0, 14, 14]
    reach = strength * 2 * 29 / 28
    law = stats.uniform(-reach, 2 * reach)
    assert found.abs().max() <= reach
    assert stats.kstest(found.numpy(), law.cdf).pvalue > 0.001


@pytest.mark.parametrize("strength", [0.5, 1.0, 10.0])
def test_values_stay_between_0_and_1(strength: float) -> None:
    bright = torch.ones(50, 1, 28, 28)
    noisy = torch.rand(50, 1, 28, 28, generator=seeded(0)).round()
    for x in (bright, noisy):
        y = jitter(x, strength)
        assert y.min() >= 0
        assert y.max() <= 1 + 1e-6
        assert y.max() > 0.5


def test_every_picture_is_changed_in_its_own_way() -> None:
    x = some_pictures(1).expand(20, 1, 28, 28)
    flat = jitter(x).flatten(1)
    apart = torch.cdist(flat, flat) + torch.eye(20)
    assert apart.min() > 0.1


def test_a_change_does_not_depend_on_the_other_pictures() -> None:
    x = some_pictures(5)
    first = jitter(x, generator=seeded(3))
    x[[0, 1, 3, 4]] = 0.0
    second = jitter(x, generator=seeded(3))
    torch.testing.assert_close(first[2], second[2])
    assert not second[[0, 1, 3, 4]].any()


def test_all_channels_of_a_picture_go_the_same_way() -> None:
    x = some_pictures(4).expand(4, 3, 28, 28)
    y = jitter(x)
    assert torch.equal(y[:, 0], y[:, 1])
    assert torch.equal(y[:, 0], y[:, 2])


def test_the_ink_of_digits_about_stays() -> None:
    x = load_digits("validation").images[:, None].float() / 255
    y = jitter(x)
    assert y.mean().item() == pytest.approx(x.mean().item(), rel=0.05)
    shares = y.mean((1, 2, 3)) / x.mean((1, 2, 3))
    assert shares.min() > 0.6
    assert shares.max() < 1.6
    assert not torch.equal(x, y)


def test_more_strength_changes_more() -> None:
    x = load_digits("validation").images[:, None].float() / 255
    changes = [
        (jitter(x, strength, seeded(0)) - x).abs().mean().item()
        for strength in (0.0, 0.25, 0.5, 1.0)
    ]
    assert changes == sorted(changes)
    assert changes[-1] > 2 * changes[1]


def test_the_same_generator_gives_the_same_and_leaves_torch_s_own() -> None:
    x = some_pictures()
    before = torch.get_rng_state()
    first, again, other = (jitter(x, generator=seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    torch.manual_seed(1)
    assert torch.equal(jitter(x), first)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_dtype_stays(dtype: torch.dtype) -> None:
    x = some_pictures().to(dtype)
    y = jitter(x, generator=seeded(0))
    assert y.dtype == dtype
    want = jitter(some_pictures(), generator=seeded(0)).to(dtype)
    torch.testing.assert_close(y, want, rtol=0, atol=1e-5)


def test_half_precision_around_it_changes_nothing() -> None:
    x = some_pictures()
    want = jitter(x, generator=seeded(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = jitter(x, generator=seeded(0))
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5)
