"""NumPy's engine for things on a CPU tells what torch's tells, and keeps to what it is for."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import assert_same, output_and_gradients, seeded, seeds
from torch import Tensor

import sparsewire as sw
from sparsewire.sorting.soft_sort import _soft_things
from sparsewire.sorting.soft_sort._soft_order import SoftOrder
from sparsewire.sorting.soft_sort._soft_things import soft_things

HOW: tuple[Any, ...] = (False, None, "student", 2)


def by_numpy(keys: Tensor, things: Tensor, *how: Any) -> Tensor:
    soft = soft_things(keys, things, *(how or HOW))
    assert soft is not None
    return soft


def by_torch(keys: Tensor, things: Tensor, *how: Any) -> Tensor:
    order = SoftOrder(keys, *(how or HOW))
    return order.mixed(order.things(things))


def assert_as_torch(keys: Tensor, things: Tensor, *how: Any) -> None:
    """In float64, where nothing of it is NumPy's."""
    inputs = {"keys": keys, "things": things}
    found = output_and_gradients(lambda keys, things: by_numpy(keys, things, *how), inputs)
    doubles = {name: tensor.double() for name, tensor in inputs.items()}
    want = output_and_gradients(lambda keys, things: by_torch(keys, things, *how), doubles)
    steepest = max(1.0, want["gradient of keys"].abs().max().item())
    want = {name: tensor.float() for name, tensor in want.items()}
    assert_same(found, want, rtol=1e-4, atol=1e-5 * steepest)


def some(*shape: int, features: int) -> tuple[Tensor, Tensor]:
    generator = seeded(shape[-1])
    return torch.randn(shape, generator=generator), torch.randn(
        (*shape, features), generator=generator
    )


@pytest.mark.parametrize("n", [3, 4, 5, 8, 13, 16, 31, 64])
@pytest.mark.parametrize("features", [1, 2, 7, 64])
@pytest.mark.parametrize(("descending", "temperature"), [(False, None), (True, None), (True, 0.3)])
def test_values_and_gradients(n, features, descending, temperature):
    assert_as_torch(*some(5, n, features=features), descending, temperature, "student", 2)


@given(seed=seeds, n=st.integers(3, 40), levels=st.integers(1, 4))
def test_equal_keys(seed, n, levels):
    keys = torch.randint(levels, (3, n), generator=seeded(seed)).float()
    assert_as_torch(keys, torch.randn(3, n, 2, generator=seeded(seed)))


@pytest.mark.parametrize("shape", [(5,), (1, 8), (2, 3, 11)], ids=str)
def test_any_leading_dimensions_and_views(shape):
    keys, things = some(*shape, features=6)
    assert_as_torch(keys, things)
    assert_as_torch(keys, things.transpose(-1, -2).contiguous().transpose(-1, -2))


@pytest.mark.parametrize("at_once", [1, 70, 200])
def test_rows_are_independent_of_how_many_are_made_at_once(at_once, monkeypatch):
    keys, things = some(9, 12, features=3)
    want = output_and_gradients(by_numpy, {"keys": keys, "things": things})
    monkeypatch.setattr(_soft_things, "AT_ONCE", at_once)
    assert_same(output_and_gradients(by_numpy, {"keys": keys, "things": things}), want)


@pytest.mark.parametrize("wanted", ["keys", "things"])
def test_one_gradient_alone(wanted):
    keys, things = some(2, 9, features=4)
    both = output_and_gradients(by_numpy, {"keys": keys, "things": things})
    fixed = {"keys": keys, "things": things}
    leaf = {wanted: fixed.pop(wanted)}
    one = output_and_gradients(lambda **leaf: by_numpy(**leaf, **fixed), leaf)
    assert_same(one, {name: both[name] for name in one}, rtol=0, atol=0)


@pytest.mark.parametrize("descending", [False, True])
def test_second_derivatives(descending):
    keys, things = some(2, 6, features=3)
    found = []
    for function, dtype in ((by_numpy, torch.float32), (by_torch, torch.float64)):
        inputs = [t.to(dtype).requires_grad_() for t in (keys, things)]
        soft = function(*inputs, descending, 0.7, "student", 2)
        first = torch.autograd.grad(soft.square().sum(), inputs, create_graph=True)
        total = sum(slope.square().sum() for slope in first)
        assert isinstance(total, Tensor)
        found.append(torch.autograd.grad(total, inputs))
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-3, atol=1e-3)


def test_a_second_derivative_of_keys_alone():
    keys, things = some(2, 6, features=3)
    leaf = keys.requires_grad_()
    (slope,) = torch.autograd.grad(by_numpy(leaf, things).square().sum(), leaf, create_graph=True)
    (found,) = torch.autograd.grad(slope.square().sum(), leaf)
    double = keys.detach().double().requires_grad_()
    soft = by_torch(double, things.double())
    (slope,) = torch.autograd.grad(soft.square().sum(), double, create_graph=True)
    (want,) = torch.autograd.grad(slope.square().sum(), double)
    torch.testing.assert_close(found.double(), want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("how", "features", "dtype"),
    [
        ((False, None, "cauchy", 2), 3, torch.float32),
        ((False, None, "student", 1), 3, torch.float32),
        ((False, 0.0, "student", 2), 3, torch.float32),
        (HOW, 65, torch.float32),
        (HOW, 0, torch.float32),
        (HOW, 3, torch.float64),
    ],
)
def test_everything_else_is_left_to_torch(how, features, dtype):
    keys, things = some(2, 8, features=features)
    assert soft_things(keys, things.to(dtype), *how) is None


def test_the_public_functions_use_it(monkeypatch):
    calls = []
    original = _soft_things._forward
    monkeypatch.setattr(
        _soft_things, "_forward", lambda *a: calls.append(len(calls)) or original(*a)
    )
    keys, things = some(4, 8, features=6)
    sw.sort_by(keys, things)
    sw.sort_by(keys, things[..., 0])
    half = sw.sort_by(keys, things.view(4, 8, 2, 3).bfloat16())
    assert (half.shape, half.dtype) == ((4, 8, 2, 3), torch.bfloat16)
    sw.soft_permutation(keys)
    assert len(calls) == 4
    sw.soft_permutation(torch.randn(2, 65))
    sw.soft_permutation(keys, hard=True)
    sw.sort_by(keys, things, hard=True)
    assert len(calls) == 4
