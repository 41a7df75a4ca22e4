"""Morton codes against bits put together one by one, in Python's integers."""

import math

import pytest
import torch
from tests.helpers import seeded
from tests.kernels.compare import random_tuples
from torch import Tensor

from sparsewire.ops.spread._triton.morton import morton_codes

LAST = 2**63 - 1


def interleaved(row: list[int], shift: int = 0) -> int:
    """Bit b of column a becomes bit b · r + a; the lowest `shift` bits are left out."""
    return sum(
        ((number >> shift >> bit) & 1) << (bit * len(row) + axis)
        for axis, number in enumerate(row)
        for bit in range(min(62 // len(row), 31))
    )


def codes(columns: Tensor, largest: int, device: str, excluded: Tensor | None = None) -> Tensor:
    hidden = None if excluded is None else excluded.to(device).view(torch.uint8)
    return morton_codes(columns.to(device), hidden, torch.tensor(largest, device=device)).cpu()


@pytest.mark.parametrize("rank", range(1, 7))
def test_bits_take_turns(rank, device):
    indices = random_tuples((2,), 150, (1000,) * rank)
    expected = [[interleaved(row) for row in context] for context in indices.tolist()]
    assert codes(indices, 999, device).tolist() == expected


@pytest.mark.parametrize(("rank", "bits"), [(1, 40), (2, 40), (2, 62), (3, 21), (6, 20)])
def test_lowest_bits_are_left_out_where_not_all_fit(rank, bits, device):
    indices = random_tuples((1,), 40, (2**bits - 1,) * rank)
    largest = int(indices.max())
    shift = max(largest.bit_length() - min(62 // rank, 31), 0)
    assert shift or rank == 3, "nothing is left out"
    expected = [interleaved(row, shift) for row in indices[0].tolist()]
    assert codes(indices, largest, device)[0].tolist() == expected
    assert min(expected) >= 0
    assert max(expected) < LAST


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_mean_has_the_code_of_the_tuple_below_it(dtype, device):
    indices = random_tuples((3,), 50, (70, 9, 20))
    means = indices + torch.rand(indices.shape, dtype=dtype, generator=seeded(0)) * 0.99
    assert torch.equal(codes(means, 69, device), codes(indices, 69, device))


def test_means_that_are_nowhere_get_a_valid_code(device):
    bad = torch.tensor([math.nan, math.inf, -math.inf, -3.0, 1e30, 9.1e18, -0.0])
    found = codes(bad.view(1, -1, 1), 100, device)
    assert found.tolist() == [[0] * len(bad)]


def test_excluded_tuples_come_last(device):
    indices = random_tuples((2,), 30, (2**20, 2**20))
    excluded = torch.rand(2, 30, generator=seeded(0)) < 0.5
    found = codes(indices, 2**20 - 1, device, excluded)
    assert (found[excluded] == LAST).all()
    assert torch.equal(found[~excluded], codes(indices, 2**20 - 1, device)[~excluded])
    assert (found[~excluded] < LAST).all()
