"""Augmented pictures: changed as far as asked, each by itself, and never out of range."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import ndimage, stats
from tests.helpers import seeded
from torch import Tensor

from sparsewire_lab.data import load_digits
from sparsewire_lab.data.augment import augment, sample_changes

NAMES = ("angle", "tall", "wide", "shear", "down", "right")
COS, SIN = math.cos(math.radians(6)), math.sin(math.radians(6))
SAME = [[1.0, 0.0], [0.0, 1.0]]


def some_pictures(count: int = 3, side: int = 28) -> Tensor:
    return torch.rand(count, 1, side, side, generator=seeded(0))


def moved(picture: Tensor, matrix: list[list[float]], shift: tuple[float, float]) -> Tensor:
    """SciPy's: each pixel reads at the product of a matrix and its row and column, and a shift.

    Both are counted from the middle of the picture. What is outside of it is black.
    """
    around = np.array(matrix)
    middle = (np.array(picture.shape) - 1) / 2
    offset: Any = middle - around @ middle + shift
    done = ndimage.affine_transform(
        picture.double().numpy(), around, offset, order=1, mode="grid-constant"
    )
    return torch.from_numpy(done).float()


def changed(x: Tensor, strength: float = 1.0, seed: int | None = None) -> Tensor:
    source = None if seed is None else seeded(seed)
    return augment(x, sample_changes(len(x), strength, generator=source))


@pytest.mark.parametrize("side", [28, 14])
@pytest.mark.parametrize(
    ("sizes", "matrix", "shift"),
    [
        ({}, SAME, (0, 0)),
        ({"down": 1.0}, SAME, (2, 0)),
        ({"down": -1.0, "right": 0.25}, SAME, (-2, 0.5)),
        ({"right": -1.0}, SAME, (0, -2)),
        ({"angle": 0.5}, [[COS, SIN], [-SIN, COS]], (0, 0)),
        ({"angle": -0.5}, [[COS, -SIN], [SIN, COS]], (0, 0)),
        ({"tall": 1.0}, [[1.12, 0.0], [0.0, 1.0]], (0, 0)),
        ({"wide": -0.5}, [[1.0, 0.0], [0.0, 0.94]], (0, 0)),
        ({"shear": 0.5}, [[1.0, 0.0], [0.1, 1.0]], (0, 0)),
        (
            {"angle": 0.5, "tall": -0.25, "wide": 0.75, "shear": -1.0, "down": 0.3},
            [[COS * 0.97, SIN * 1.09], [-SIN * 0.97 - 0.2, COS * 1.09]],
            (0.6, 0),
        ),
    ],
)
def test_changes_are_one_affine_map(
    sizes: dict[str, float], matrix: list[list[float]], shift: tuple[float, float], side: int
) -> None:
    """A shift of 1 is one of 2 in 28 pixels."""
    x = some_pictures(side=side)
    by = shift[0] * side / 28, shift[1] * side / 28
    want = torch.stack([moved(picture, matrix, by) for picture in x[:, 0]])
    changes = torch.tensor([[sizes.get(name, 0.0) for name in NAMES]] * len(x))
    torch.testing.assert_close(augment(x, changes)[:, 0], want, rtol=0, atol=1e-4)


@pytest.mark.parametrize("strength", [0.5, 1.0])
def test_changes_are_uniform_and_independent(strength: float) -> None:
    numbers = sample_changes(2000, strength, generator=seeded(1))
    law = stats.uniform(-strength, 2 * strength)
    assert numbers.abs().max() <= strength
    assert all(stats.kstest(column.numpy(), law.cdf).pvalue > 0.001 for column in numbers.T)
    assert (torch.corrcoef(numbers.T) - torch.eye(6)).abs().max() < 0.1


@pytest.mark.parametrize("strength", [0.5, 10.0])
def test_values_stay_between_0_and_1(strength: float) -> None:
    bright = torch.ones(50, 1, 28, 28)
    noisy = torch.rand(50, 1, 28, 28, generator=seeded(0)).round()
    for x in (bright, noisy):
        y = changed(x, strength)
        assert y.min() >= 0
        assert 0.5 < y.max() <= 1 + 1e-6


def test_every_picture_is_changed_in_its_own_way_and_its_channels_alike() -> None:
    x = some_pictures(1).expand(20, 3, 28, 28)
    y = changed(x)
    flat = y[:, 0].flatten(1)
    assert (torch.cdist(flat, flat) + torch.eye(20)).min() > 0.1
    assert torch.equal(y, y[:, :1].expand_as(y))


def test_a_change_does_not_depend_on_the_other_pictures() -> None:
    x = some_pictures(5)
    first = changed(x, seed=3)
    x[[0, 1, 3, 4]] = 0.0
    second = changed(x, seed=3)
    torch.testing.assert_close(first[2], second[2])
    assert not second[[0, 1, 3, 4]].any()


def test_digits_keep_their_ink_and_change_more_with_more_strength() -> None:
    x = load_digits("validation").images[:, None].float() / 255
    shares = changed(x).mean((1, 2, 3)) / x.mean((1, 2, 3))
    assert shares.mean().item() == pytest.approx(1, rel=0.05)
    assert 0.6 < shares.min() <= shares.max() < 1.6
    apart = [(changed(x, s, seed=0) - x).abs().mean().item() for s in (0.0, 0.25, 0.5, 1.0)]
    assert apart == sorted(apart)
    assert apart[0] < 1e-5
    assert apart[-1] > 2 * apart[1]


def test_the_dtype_stays_under_autocast_too() -> None:
    x = some_pictures()
    want = changed(x, seed=0)
    double = changed(x.double(), seed=0)
    assert double.dtype == torch.float64
    torch.testing.assert_close(double, want.double(), rtol=0, atol=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = changed(x, seed=0)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5)
