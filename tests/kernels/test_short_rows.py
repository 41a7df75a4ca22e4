"""Soft sorts of short rows in one kernel, against the products of matrices in float64."""

import math
from typing import Any

import pytest
import torch
from tests.helpers import assert_same, output_and_gradients, seeded
from torch import Tensor

import sparsewire as sw
from sparsewire.ops import _soft_numbers
from sparsewire.ops._triton import short_rows

INF, NAN = math.inf, math.nan
FUNCTIONS: dict[str, Any] = {"sorted": sw.soft_sort, "ranks": sw.soft_rank}
functions = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which of the two kernels was called, in order."""
    calls: list[str] = []
    for name in ("forward", "backward"):
        original = getattr(short_rows, name)

        def counted(*args: Any, name: str = name, original: Any = original) -> Tensor:
            calls.append(name)
            return original(*args)

        monkeypatch.setattr(short_rows, name, counted)
    return calls


def results(function: Any, keys: Tensor, engine: Any, **options: Any) -> dict[str, Tensor]:
    with sw.engine(engine):
        found = output_and_gradients(lambda keys: function(keys, **options), {"keys": keys})
    return {name: tensor.double().cpu() for name, tensor in found.items()}


def assert_as_matrices(
    function: Any, keys: Tensor, device: str, atol: float = 1e-4, **options: Any
) -> None:
    got = results(function, keys.to(device), "triton", **options)
    want = results(function, keys.double(), "reference", **options)
    steepest = max(1.0, want["gradient of keys"].nan_to_num().abs().max().item())
    assert_same(got, want, rtol=1e-4, atol=atol * steepest, equal_nan=True)


def keys_of(n: int, batch: int = 3) -> Tensor:
    return torch.randn(batch, n, generator=seeded(n))


@functions
@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 13, 16, 21, 64, 100])
@pytest.mark.parametrize("temperature", [None, 0.5])
@pytest.mark.parametrize("descending", [False, True])
def test_values_and_gradients(function, n, temperature, descending, device, launches):
    options = {"temperature": temperature, "descending": descending}
    assert_as_matrices(function, keys_of(n), device, **options)
    assert launches == ["forward", "backward"]


@functions
@pytest.mark.parametrize("n", [3, 8, 21])
def test_another_squash(function, n, device, launches):
    assert_as_matrices(function, keys_of(n), device, squash="logistic", temperature=0.7)
    assert launches == ["forward", "backward"]


@functions
@pytest.mark.parametrize("batch", [1, 7, 8, 9, 70])
@pytest.mark.parametrize("n", [4, 7, 16])
def test_rows_are_shared_among_programs(function, n, batch, device):
    """And nothing of one row comes into another, at whatever distance they are."""
    keys = keys_of(n, batch) * 10.0 ** (torch.arange(batch) % 5 - 2).unsqueeze(1)
    assert_as_matrices(function, keys, device)


@functions
def test_more_fours_than_threads(function, device):
    assert_as_matrices(function, keys_of(1000, 1), device, atol=1e-3)


@functions
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("temperature", [None, 0.3, 1e-30])
@pytest.mark.parametrize(
    "row",
    [
        [1.0, 1.0, 1.0, 1.0, 1.0],
        [2.0, 1.0, 2.0, 1.0, 0.0, -0.0],
        [1e30, -1e30, 0.0, 3.0],
        [3e38, -3e38, 1.0],
        [INF, 1.0, -INF, 0.0, INF, 2.0],
        [INF, INF, -INF],
        [NAN, 1.0, 3.0, -INF, 2.0],
        [NAN, INF, NAN, -INF],
        [1e-40, 2e-40, 0.0],
    ],
    ids=str,
)
def test_ties_infinities_and_what_is_not_a_number(function, row, temperature, descending, device):
    """As in float32 by matrices: whether a number is too large depends on the dtype."""
    keys, options = torch.tensor([row]), {"temperature": temperature, "descending": descending}
    got = results(function, keys.to(device), "triton", **options)
    want = results(function, keys, "reference", **options)
    torch.testing.assert_close(got["output"], want["output"], rtol=1e-4, atol=1e-5, equal_nan=True)
    finite = got["gradient of keys"][keys.isfinite()]
    assert finite.isfinite().all()
    steepest = want["gradient of keys"].nan_to_num().abs().max().item()
    torch.testing.assert_close(
        got["gradient of keys"], want["gradient of keys"], rtol=1e-3, atol=1e-4 * max(1, steepest)
    )


@functions
def test_second_derivatives(function, device):
    found = []
    for engine, dtype, where in (
        ("triton", torch.float32, device),
        ("reference", torch.float64, "cpu"),
    ):
        x = keys_of(7, 2).to(where, dtype).requires_grad_()
        with sw.engine(engine):  # pyright: ignore[reportArgumentType]
            y = function(x, temperature=0.7, descending=True)
            (slope,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
            found.append(torch.autograd.grad(slope.square().sum(), x)[0].double().cpu())
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3)


@functions
def test_leading_dimensions_views_and_half_precision(function, device, launches):
    keys = torch.randn(2, 3, 10, generator=seeded(0)).bfloat16()
    got = results(function, keys.to(device).expand(2, 2, 3, 10), "triton")
    want = results(function, keys.float(), "reference")
    torch.testing.assert_close(got["output"][1], want["output"], rtol=1e-2, atol=1e-2)
    along = results(function, keys.float().to(device), "triton", dim=1)
    want = results(function, keys.float(), "reference", dim=1)
    assert_same(along, want, rtol=1e-4, atol=1e-4)
    assert launches == ["forward", "backward"] * 2


@pytest.mark.parametrize(
    "options",
    [{"reach": 3}, {"squash": "cauchy"}, {"temperature": 0.0}, {"hard": True}],
    ids=str,
)
def test_everything_else_takes_another_way(options, device, launches):
    keys = keys_of(9)
    got = results(sw.soft_rank, keys.to(device), "triton", **options)
    assert_same(got, results(sw.soft_rank, keys, "reference", **options), rtol=1e-3, atol=1e-4)
    assert not launches


def test_long_rows_take_another_way(device, launches, monkeypatch):
    monkeypatch.setattr(short_rows, "LONGEST", 8)
    for n in (8, 9):
        assert_as_matrices(sw.soft_rank, keys_of(n), device)
    assert launches == ["forward", "backward"]


def test_nothing_is_kept_but_the_keys(device):
    keys = keys_of(16).to(device).requires_grad_()
    with sw.engine("triton"):
        soft = sw.soft_rank(keys)
    assert isinstance(soft.grad_fn, _soft_numbers._ShortRows._backward_cls)  # pyright: ignore
    assert [t.data_ptr() for t in soft.grad_fn.saved_tensors] == [keys.data_ptr()]  # pyright: ignore
