"""The engine in NumPy agrees with the reference, and takes only the calls it is for."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import assert_same, output_and_gradients, pairwise, seeded, seeds
from torch import Tensor
from torch.func import vmap

import sparsewire as sw
from sparsewire.engines import select
from sparsewire.sorting.soft_sort import _ENGINES, Call, _soft_numbers, _soft_payload


def by_payload(x: Tensor, payload: Tensor | None = None, **options: Any) -> Tensor:
    given = torch.arange(3 * x.numel()).view(*x.shape, 3).to(x).sin()
    return sw.sort_by(x, given if payload is None else payload, **options)


FUNCTIONS: dict[str, Any] = {"sorted": sw.soft_sort, "ranks": sw.soft_rank, "payload": by_payload}
functions = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())


def chosen_for(keys: Tensor, payload: Tensor | None = None, **changed: Any) -> str:
    """The engine of a call."""
    operation = "sort" if payload is None else "payload"
    call = Call(operation, keys, payload, False, None, "student", 2, False)
    return select(_ENGINES, keys.device, call._replace(**changed)).name


def assert_as_reference(function: Any, *tensors: Tensor, **options: Any) -> None:
    """In float64, of which NumPy computes nothing."""
    named: dict[str, Tensor] = dict(zip(("x", "payload"), tensors, strict=False))
    assert chosen_for(*tensors) == "numpy"
    got = output_and_gradients(lambda **t: function(**t, **options), named)
    with sw.engine("reference"):
        doubles = {name: tensor.double() for name, tensor in named.items()}
        want = output_and_gradients(lambda **t: function(**t, **options), doubles)
    largest = max(1.0, *(float(tensor.abs().max()) for tensor in want.values()))
    got = {name: tensor.double() for name, tensor in got.items()}
    assert_same(got, want, rtol=1e-4, atol=1e-5 * largest)


@pytest.mark.parametrize(
    "row",
    pairwise(
        function=list(FUNCTIONS),
        n=[*range(3, 10), 13, 16, 31, 64, 100, 257],
        descending=[False, True],
        temperature=[None, 0.3, 5.0],
    ),
    ids=str,
)
def test_values_and_gradients(row):
    function, n = FUNCTIONS[row.pop("function")], row.pop("n")
    assert_as_reference(function, torch.randn(7, n, generator=seeded(n)), **row)


@pytest.mark.parametrize("row", pairwise(n=[3, 4, 5, 16, 31], features=[1, 2, 7, 64]), ids=str)
def test_payloads_of_any_number_of_features(row):
    keys = torch.randn(5, row["n"], generator=seeded(0))
    payload = torch.randn(*keys.shape, row["features"], generator=seeded(1))
    assert_as_reference(by_payload, keys, payload)


@functions
@given(seed=seeds, n=st.integers(3, 40), levels=st.integers(1, 4))
def test_equal_keys(seed, n, levels, function):
    """Which of them comes first matters to the gradients, not to the values."""
    assert_as_reference(function, torch.randint(levels, (3, n), generator=seeded(seed)).float())


@functions
@pytest.mark.parametrize("shape", [(5,), (1, 8), (2, 3, 11), (2, 1, 2, 16)], ids=str)
def test_leading_dimensions_and_views(shape, function):
    keys = torch.randn(shape, generator=seeded(0))
    assert_as_reference(function, keys)
    assert_as_reference(function, keys.repeat_interleave(2, dim=-1)[..., ::2])
    payload = torch.randn(*shape, 6, generator=seeded(1))
    assert_as_reference(by_payload, keys, payload.mT.contiguous().mT)


@functions
@pytest.mark.parametrize("at_once", [1, 12, 40, 100])
def test_rows_do_not_depend_on_how_many_are_computed_at_once(at_once, function, monkeypatch):
    keys = {"x": torch.randn(9, 12, generator=seeded(0))}
    want = output_and_gradients(function, keys)
    for module in (_soft_numbers, _soft_payload):
        monkeypatch.setattr(module, "AT_ONCE", at_once)
    assert_same(output_and_gradients(function, keys), want)


@pytest.mark.parametrize("function", [sw.soft_sort, sw.soft_rank])
@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1e20, 1e30])
def test_the_range_of_float32(scale, function):
    keys = torch.randn(4, 20, generator=seeded(0))
    soft = function(keys * scale) / (scale if function is sw.soft_sort else 1)
    torch.testing.assert_close(soft, function(keys), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("temperature", [1e-300, 1e-40, 1e-10])
def test_the_least_temperatures_give_the_exact_order(temperature):
    """Without a warning about an infinite distance or a division by zero."""
    keys = torch.tensor([3.0, 1.0, 2.0, 1.0, -4.0], requires_grad=True)
    soft = sw.soft_sort(keys, temperature=temperature)
    ranks = sw.soft_rank(keys, temperature=temperature)
    torch.testing.assert_close(soft, torch.tensor([-4.0, 1.0, 1.0, 2.0, 3.0]))
    torch.testing.assert_close(ranks, torch.tensor([4.0, 1.5, 3.0, 1.5, 0.0]))
    for result in (soft, ranks):
        assert torch.autograd.grad(result.sum(), keys)[0].isfinite().all()


def test_the_gradient_of_one_argument_alone():
    keys, payload = torch.randn(2, 9), torch.randn(2, 9, 4)
    fixed = {"x": keys, "payload": payload}
    both = output_and_gradients(by_payload, fixed)
    for name in fixed:
        others = {other: tensor for other, tensor in fixed.items() if other != name}
        one = output_and_gradients(lambda o=others, **t: by_payload(**t, **o), {name: fixed[name]})
        assert_same(one, {key: both[key] for key in one}, rtol=0, atol=0)


@functions
@pytest.mark.parametrize("descending", [False, True])
def test_second_derivatives(function, descending):
    results = []
    pairs: Any = (("numpy", torch.float32), ("reference", torch.float64))
    for engine, dtype in pairs:
        x = torch.randn(2, 6, generator=seeded(0)).to(dtype).requires_grad_()
        weight = torch.linspace(-1, 2, 6, dtype=dtype).requires_grad_()
        with sw.engine(engine):
            soft = function(x, descending=descending, temperature=0.7)
        soft = soft if soft.dim() == 2 else soft.square().sum(-1)
        (first,) = torch.autograd.grad((soft * weight).sum(), x, create_graph=True)
        results.append(torch.autograd.grad(first.square().sum(), (x, weight)))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=1e-3, atol=1e-3)


def test_autograd_detects_a_second_backward_pass_and_changes_in_place():
    keys = torch.randn(2, 8, requires_grad=True)
    soft = sw.soft_rank(keys)
    soft.sum().backward(retain_graph=True)
    soft.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        soft.sum().backward()
    changed = keys.clone()
    soft = sw.soft_sort(changed)
    changed.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        soft.sum().backward()
    assert sw.soft_rank(torch.randn(3)).grad_fn is None


def test_saved_arrays_grow_with_the_number_of_elements():
    def saved(n: int) -> int:
        _, saved = _soft_numbers._forward(np.zeros((2, n), np.float32), None, True)
        order = saved.order
        arrays = (order.where, order.heat, *order.weights, saved.windows, saved.apart)
        return sum(array.nbytes for array in arrays)

    assert saved(4096) < 50 * 2 * 4096
    assert saved(8192) < 2.1 * saved(4096)


KEYS, PAYLOAD = torch.randn(2, 8), torch.randn(2, 8, 3)


@pytest.mark.parametrize(
    ("keys", "payload", "changed"),
    [
        (KEYS, None, {"distribution": "cauchy"}),
        (KEYS, None, {"reach": 3}),
        (KEYS, None, {"hard": True}),
        (KEYS, None, {"temperature": 0.0}),
        (KEYS, None, {"temperature": torch.tensor(1.0)}),
        (KEYS.double(), None, {}),
        (KEYS[:, :2], None, {}),
        (KEYS[:0], None, {}),
        (KEYS[:, :0], None, {}),
        (torch.tensor([1.0, math.inf, 2.0]), None, {}),
        (torch.tensor([1.0, math.nan, 2.0]), None, {}),
        (torch.tensor([3e38, -3e38, 0.0]), None, {}),
        (KEYS.to("meta"), None, {}),
        (torch.randn(2, 65), None, {"operation": "permutation"}),
        (KEYS, PAYLOAD[..., :0], {}),
        (KEYS, PAYLOAD.double(), {}),
        (KEYS, torch.randn(2, 8, 65), {}),
        (KEYS, PAYLOAD, {"reach": 1}),
    ],
)
def test_other_calls_are_computed_by_other_engines(keys, payload, changed):
    with sw.engine("numpy"):
        assert chosen_for(keys, payload, **changed) in ("chunked", "reference")


def test_many_numbers_are_left_to_many_threads(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    many, few = torch.randn(64, 1024), torch.randn(64, 64)
    assert [chosen_for(x) for x in (many, many[:1], few)] == ["chunked", "numpy", "numpy"]


def test_the_public_functions_use_it(monkeypatch):
    """In half precision too, but not under a transform."""
    calls = []
    for module in (_soft_numbers, _soft_payload):
        original = module._forward
        monkeypatch.setattr(module, "_forward", lambda *a, f=original: calls.append(f) or f(*a))
    x, payload = torch.randn(4, 8), torch.randn(4, 8, 2, 3)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for function in (sw.soft_sort, sw.soft_rank, sw.soft_median, sw.soft_permutation):
            assert function(x.to(dtype)).dtype == dtype
        result = sw.sort_by(x, payload.to(dtype))
        assert (result.shape, result.dtype) == (payload.shape, dtype)
    assert len(calls) == 15
    vmap(sw.soft_rank)(x)
    sw.sort_by(x, payload, hard=True)
    assert len(calls) == 15
