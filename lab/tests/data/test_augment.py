"""Augmented pictures: changed as far as asked, each by itself."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import ndimage, stats
from tests.helpers import seeded
from torch import Tensor

from sparsewire_lab.data.augment import augment, sample_changes

NAMES = ("angle", "tall", "wide", "shear", "down", "right")
COS, SIN = math.cos(math.radians(6)), math.sin(math.radians(6))
SAME = [[1.0, 0.0], [0.0, 1.0]]


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


# Sizes of changes by name, the matrix of SciPy, and the shift in pixels of 28.
CHANGES: list[tuple[dict[str, float], list[list[float]], tuple[float, float]]] = [
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
]


@pytest.mark.parametrize("side", [28, 14])
def test_the_changes_of_each_picture_are_an_affine_map_of_its_own(side: int) -> None:
    """The same one for all its channels."""
    x = torch.rand(len(CHANGES), 2, side, side)
    changes = torch.tensor([[sizes.get(name, 0.0) for name in NAMES] for sizes, *_ in CHANGES])
    for got, channels, (sizes, matrix, shift) in zip(augment(x, changes), x, CHANGES, strict=True):
        by = shift[0] * side / 28, shift[1] * side / 28
        want = torch.stack([moved(channel, matrix, by) for channel in channels])
        torch.testing.assert_close(got, want, rtol=0, atol=1e-4, msg=str(sizes))


@pytest.mark.parametrize("strength", [0.5, 1.0])
def test_changes_are_uniform_and_independent(strength: float) -> None:
    numbers = sample_changes(2000, strength, generator=seeded(1))
    law = stats.uniform(-strength, 2 * strength)
    assert numbers.abs().max() <= strength
    assert all(stats.kstest(column.numpy(), law.cdf).pvalue > 0.001 for column in numbers.T)
    assert (torch.corrcoef(numbers.T) - torch.eye(6)).abs().max() < 0.1


def test_the_dtype_stays_under_autocast_too() -> None:
    x, changes = torch.rand(3, 1, 28, 28), sample_changes(3)
    want = augment(x, changes)
    double = augment(x.double(), changes)
    assert double.dtype == torch.float64
    torch.testing.assert_close(double, want.double(), rtol=0, atol=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = augment(x, changes)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5)
