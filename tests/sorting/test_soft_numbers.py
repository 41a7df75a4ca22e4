"""NumPy's engine for numbers on a CPU tells what torch's tells, and keeps to what it is for."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import assert_same, output_and_gradients, seeded, seeds
from torch import Tensor
from torch.func import vmap

import sparsewire as sw
from sparsewire.sorting.soft_sort import _soft_numbers
from sparsewire.sorting.soft_sort._soft_numbers import soft_numbers
from sparsewire.sorting.soft_sort._soft_order import SoftOrder

HOW: tuple[Any, ...] = (False, None, "student", 2)
SIZES = [*range(3, 10), 13, 16, 31, 64, 100, 257]
ranks_or_not = pytest.mark.parametrize("ranks", [False, True], ids=["sorted", "ranks"])


def by_numpy(keys: Tensor, *how: Any, ranks: bool) -> Tensor:
    soft = soft_numbers(keys, *(how or HOW), ranks=ranks)
    assert soft is not None
    return soft


def by_torch(keys: Tensor, *how: Any, ranks: bool) -> Tensor:
    order = SoftOrder(keys, *(how or HOW))
    return order.ranks() if ranks else order.soft()


def assert_as_torch(keys: Tensor, *how: Any, ranks: bool) -> None:
    """In float64, where nothing of it is NumPy's."""
    found = output_and_gradients(lambda keys: by_numpy(keys, *how, ranks=ranks), {"keys": keys})
    want = output_and_gradients(
        lambda keys: by_torch(keys, *how, ranks=ranks), {"keys": keys.double()}
    )
    steepest = want["gradient of keys"].abs().max().item()
    want = {name: tensor.float() for name, tensor in want.items()}
    largest = max(1.0, want["output"].abs().max().item())
    assert_same(found, want, rtol=1e-4, atol=1e-5 * max(largest, steepest))


@ranks_or_not
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("temperature", [None, 0.3, 5.0])
def test_values_and_gradients(n, descending, temperature, ranks):
    keys = torch.randn(7, n, generator=seeded(n))
    assert_as_torch(keys, descending, temperature, "student", 2, ranks=ranks)


@ranks_or_not
@given(seed=seeds, n=st.integers(3, 40), levels=st.integers(1, 4))
def test_equal_keys(seed, n, levels, ranks):
    """Which of them comes first does not matter to the values, but to the gradients."""
    keys = torch.randint(levels, (3, n), generator=seeded(seed)).float()
    assert_as_torch(keys, ranks=ranks)


@ranks_or_not
@pytest.mark.parametrize("shape", [(5,), (1, 8), (2, 3, 11), (2, 1, 2, 16)], ids=str)
def test_any_leading_dimensions_and_views(shape, ranks):
    keys = torch.randn(shape, generator=seeded(0))
    assert_as_torch(keys, ranks=ranks)
    assert_as_torch(keys.repeat_interleave(2, dim=-1)[..., ::2], ranks=ranks)


@ranks_or_not
@pytest.mark.parametrize("at_once", [1, 12, 40, 100])
def test_rows_are_independent_of_how_many_are_made_at_once(at_once, ranks, monkeypatch):
    keys = torch.randn(9, 12, generator=seeded(0))
    function = {"function": lambda keys: by_numpy(keys, ranks=ranks), "inputs": {"keys": keys}}
    want = output_and_gradients(**function)
    monkeypatch.setattr(_soft_numbers, "AT_ONCE", at_once)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert_same(output_and_gradients(**function), want, rtol=0, atol=0)


@ranks_or_not
@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1e20, 1e30])
def test_the_range_of_float32(scale, ranks):
    keys = torch.randn(4, 20, generator=seeded(0))
    soft = by_numpy(keys * scale, ranks=ranks)
    torch.testing.assert_close(
        soft if ranks else soft / scale, by_numpy(keys, ranks=ranks), rtol=1e-4, atol=1e-5
    )


@ranks_or_not
@pytest.mark.parametrize("temperature", [1e-300, 1e-40, 1e-10])
def test_next_to_no_temperature_is_the_exact_order(temperature, ranks):
    """Without a warning that a distance is infinite, or that zero divides it."""
    keys = torch.tensor([3.0, 1.0, 2.0, 1.0, -4.0], requires_grad=True)
    soft = by_numpy(keys, False, temperature, "student", 2, ranks=ranks)
    want = [4.0, 1.5, 3.0, 1.5, 0.0] if ranks else [-4.0, 1.0, 1.0, 2.0, 3.0]
    torch.testing.assert_close(soft, torch.tensor(want))
    soft.sum().backward()
    assert keys.grad is not None
    assert keys.grad.isfinite().all()


@ranks_or_not
@pytest.mark.parametrize("descending", [False, True])
def test_second_derivatives(descending, ranks):
    keys = torch.randn(2, 6, generator=seeded(0))
    found = []
    for function, dtype in ((by_numpy, torch.float32), (by_torch, torch.float64)):
        x = keys.to(dtype).requires_grad_()
        weight = torch.linspace(-1, 2, 6, dtype=dtype).requires_grad_()
        soft = function(x, descending, 0.7, "student", 2, ranks=ranks)
        (first,) = torch.autograd.grad((soft * weight).sum(), x, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), (x, weight)))
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-3, atol=1e-4)


def test_autograd_watches_over_it_as_over_everything():
    keys = torch.randn(2, 8, requires_grad=True)
    soft = by_numpy(keys, ranks=True)
    soft.sum().backward(retain_graph=True)
    soft.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        soft.sum().backward()
    changed = keys.clone()
    soft = by_numpy(changed, ranks=False)
    changed.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        soft.sum().backward()
    assert by_numpy(torch.randn(3), ranks=True).grad_fn is None


def test_what_is_kept_grows_with_the_number_of_elements():
    def kept(n: int) -> int:
        _, kept = _soft_numbers._forward(np.zeros((2, n), np.float32), None, True)
        order = kept.order
        arrays = (order.where, order.heat, *order.weights, kept.windows, kept.apart)
        return sum(array.nbytes for array in arrays)

    assert kept(4096) < 50 * 2 * 4096
    assert kept(8192) < 2.1 * kept(4096)


@pytest.mark.parametrize(
    ("keys", "how"),
    [
        (torch.randn(8), (False, None, "cauchy", 2)),
        (torch.randn(8), (False, None, "student", 3)),
        (torch.randn(8), (False, 0.0, "student", 2)),
        (torch.randn(8), (False, torch.tensor(1.0), "student", 2)),
        (torch.randn(8).double(), HOW),
        (torch.randn(3, 2), HOW),
        (torch.randn(0, 8), HOW),
        (torch.randn(0), HOW),
        (torch.tensor(1.0), HOW),
        (torch.tensor([1.0, math.inf, 2.0]), HOW),
        (torch.tensor([1.0, math.nan, 2.0]), HOW),
        (torch.tensor([3e38, -3e38, 0.0]), HOW),
        (torch.randn(8, device="meta"), HOW),
    ],
)
def test_everything_else_is_left_to_torch(keys, how):
    assert soft_numbers(keys, *how, ranks=True) is None


def test_many_numbers_are_left_to_many_threads(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    many, few = torch.randn(64, 1024), torch.randn(64, 64)
    found = [soft_numbers(x, *HOW, ranks=True) is None for x in (many, many[:1], few)]
    assert found == [True, False, False]


def test_the_public_functions_use_it(monkeypatch):
    """And not for traces, transforms, or a hard result."""
    calls = []
    original = _soft_numbers._forward
    monkeypatch.setattr(
        _soft_numbers, "_forward", lambda *a: calls.append(len(calls)) or original(*a)
    )
    x = torch.randn(4, 8)
    for function, dtype in itertools.product(
        (sw.soft_sort, sw.soft_rank), (torch.float32, torch.float16, torch.bfloat16)
    ):
        assert function(x.to(dtype)).dtype == dtype
    sw.soft_median(x)
    assert len(calls) == 7
    vmap(sw.soft_rank)(x)
    sw.soft_sort(x, hard=True)
    assert len(calls) == 7
