"""Rows are sorted as torch sorts them, whoever does it."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import seeded, seeds
from torch import Tensor
from torch.func import vmap

import sparsewire as sw
from sparsewire.sorting import _rows as _sorting
from sparsewire.sorting._rows import sort_rows

SPECIAL = [0.0, -0.0, 1.0, -1.0, 1e30, -1e30, 1e-45, -1e-45]
descending = pytest.mark.parametrize("descending", [False, True])


def assert_as_torch(x: Tensor, descending: bool) -> None:
    found, want = sort_rows(x, descending), x.sort(dim=-1, descending=descending, stable=True)
    torch.testing.assert_close(found, tuple(want), rtol=0, atol=0, equal_nan=True)
    if x.is_floating_point():
        assert torch.equal(found[0].signbit(), want[0].signbit())


@descending
@pytest.mark.parametrize("more", [[], [math.inf, -math.inf], [math.nan], [3e38, 3.1e38]], ids=str)
def test_floats_with_equal_ones_and_both_zeros(descending, more):
    few = torch.tensor(SPECIAL + more)
    x = few[torch.randint(len(few), (3, 300), generator=seeded(0))]
    x = torch.cat([x, torch.randn(3, 40, generator=seeded(1))], dim=-1)
    assert_as_torch(x, descending)
    assert_as_torch(x.T.contiguous().T, descending)
    assert_as_torch(x.view(3, 1, 340), descending)


@descending
@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
)
def test_integers_of_every_kind(dtype, descending):
    x = torch.randint(0 if dtype in (torch.bool, torch.uint8) else -90, 90, (4, 200)).to(dtype)
    assert_as_torch(x, descending)


@descending
def test_integers_at_the_ends_of_their_range(descending):
    ends = [-(2**31), 2**31 - 1, 0, -1, 1]
    x = torch.tensor(ends * 40).view(2, 100).repeat(1, 2)
    assert_as_torch(x, descending)
    assert_as_torch(x.int(), descending)
    assert_as_torch(torch.cat([x, torch.tensor([[2**62], [-(2**63)]])], dim=-1), descending)


@given(seeds, st.integers(0, 400), st.booleans())
def test_rows_of_any_length(seed, n, descending):
    assert_as_torch(torch.randn(2, n, generator=seeded(seed)).mul(3).round(), descending)


def test_gradients_go_where_elements_were():
    x = torch.randn(2, 200, requires_grad=True)
    weight = torch.randn(2, 200)
    (found,) = torch.autograd.grad((sort_rows(x)[0] * weight).sum(), x)
    (want,) = torch.autograd.grad((x.sort(dim=-1).values * weight).sum(), x)
    torch.testing.assert_close(found, want)


def test_only_some_rows_are_sorted_another_way(monkeypatch):
    """Long ones, unless there are many threads for many of them; nothing under a transform."""
    calls = []
    bits = _sorting._bits
    monkeypatch.setattr(_sorting, "_bits", lambda x: calls.append(x) or bits(x))

    def another(x: Tensor) -> bool:
        calls.clear()
        sort_rows(x)
        return bool(calls)

    assert [another(torch.randn(8, n)) for n in (64, 200)] == [False, True]
    vmap(lambda row: sort_rows(row)[0])(torch.randn(3, 200))
    assert len(calls) == 1
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    assert [another(torch.randn(rows, 200)) for rows in (8, 1)] == [False, True]
    calls.clear()
    sw.soft_rank(torch.randn(200), hard=True)
    sw.order_loss(torch.randn(200), torch.arange(200))
    assert len(calls) == 3
