"""Soft sorts of short rows in one kernel, against the products of matrices in float64."""

import math
from typing import Any

import pytest
import torch
from tests.helpers import assert_same, output_and_gradients, pairwise, seeded
from torch import Tensor

import sparsewire as sw
from sparsewire.sorting.soft_sort._short_rows import ShortSort
from sparsewire.sorting.soft_sort._triton import short_rows, short_sorts

INF, NAN = math.inf, math.nan
FUNCTIONS: dict[str, Any] = {"sorted": sw.soft_sort, "ranks": sw.soft_rank}
ROWS = [
    [1.0, 1.0, 1.0, 1.0, 1.0],
    [2.0, 1.0, 2.0, 1.0, 0.0, -0.0],
    [1e30, -1e30, 0.0, 3.0],
    [3e38, -3e38, 1.0],
    [INF, 1.0, -INF, 0.0, INF, 2.0],
    [INF, INF, -INF],
    [NAN, 1.0, 3.0, -INF, 2.0],
    [NAN, INF, NAN, -INF],
    [1e-40, 2e-40, 0.0],
]
functions = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which kernels were called, in order."""
    calls: list[str] = []
    for module, names in (
        (short_sorts, ("forward", "backward")),
        (short_rows, ("order", "order_backward")),
    ):
        for name in names:
            original = getattr(module, name)

            def counted(*args: Any, name: str = name, original: Any = original) -> Any:
                calls.append(name)
                return original(*args)

            monkeypatch.setattr(module, name, counted)
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


OPTIONS: dict[str, Any] = {"temperature": [None, 0.5], "descending": [False, True]}


@pytest.mark.parametrize(
    "row",
    pairwise(
        function=["sorted", "ranks"],
        n=[2, 3, 4, 5, 8, 13, 16, 100],
        distribution=["student", "logistic"],
        **OPTIONS,
    ),
    ids=str,
)
def test_values_and_gradients(row, device, launches):
    options = dict(row)
    function, n = FUNCTIONS[options.pop("function")], options.pop("n")
    assert_as_matrices(function, keys_of(n), device, **options)
    assert launches == ["forward", "backward"]


@functions
@pytest.mark.parametrize(("n", "batch"), [(4, 1), (4, 70), (7, 7), (7, 9), (16, 8), (16, 70)])
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
@pytest.mark.parametrize("row", ROWS, ids=str)
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
def test_leading_dimensions_views_and_half_precision(function, device, launches):
    keys = torch.randn(2, 3, 10, generator=seeded(0)).bfloat16()
    got = results(function, keys.to(device).expand(2, 2, 3, 10), "triton")
    want = results(function, keys.float(), "reference")
    torch.testing.assert_close(got["output"][1], want["output"], rtol=1e-2, atol=1e-2)
    along = results(function, keys.float().to(device), "triton", dim=1)
    want = results(function, keys.float(), "reference", dim=1)
    assert_same(along, want, rtol=1e-4, atol=1e-4)
    assert launches == ["forward", "backward"] * 2


# The order and its distances, for everything that is more than numbers in soft order.


def by_payload(keys: Tensor, **options: Any) -> Tensor:
    payload = torch.linspace(-1, 2, keys.numel() * 3, dtype=keys.dtype, device=keys.device).cos()
    return sw.sort_by(keys, payload.view(*keys.shape, 3), **options)


@pytest.mark.parametrize(
    "row",
    pairwise(payload=[True, False], n=[2, 3, 4, 5, 8, 13, 21], **OPTIONS),
    ids=str,
)
def test_order_and_distances(row, device, launches):
    options = dict(row)
    function = by_payload if options.pop("payload") else sw.soft_permutation
    n = options.pop("n")
    assert_as_matrices(function, keys_of(n), device, **options)
    assert launches == ["order", "order_backward"]


@pytest.mark.parametrize(
    "options", [{"reach": 3}, {"distribution": "cauchy"}, {"hard": True}], ids=str
)
def test_what_is_not_the_default_begins_with_the_order(options, device, launches):
    assert_as_matrices(sw.soft_rank, keys_of(9), device, **options)
    assert launches == ["order", "order_backward"]


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_distances_of_ties_and_of_infinities(row, descending, device):
    keys = torch.tensor([row])
    for temperature in (None, 0.3):
        options = {"temperature": temperature, "descending": descending}
        got = results(by_payload, keys.to(device), "triton", **options)
        want = results(by_payload, keys, "reference", **options)
        assert got["gradient of keys"].isfinite().all()
        steepest = max(1.0, want["gradient of keys"].abs().max().item())
        assert_same(got, want, rtol=1e-3, atol=1e-4 * steepest)


@pytest.mark.parametrize("function", [sw.soft_sort, sw.soft_rank, by_payload])
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


@pytest.mark.parametrize("temperature", [0.0, torch.tensor(0.5)], ids=str)
def test_other_temperatures_take_another_way(temperature, device, launches):
    there = temperature.to(device) if isinstance(temperature, Tensor) else temperature
    got = results(sw.soft_rank, keys_of(9).to(device), "triton", temperature=there)
    want = results(sw.soft_rank, keys_of(9), "reference", temperature=temperature)
    assert_same(got, want, rtol=1e-3, atol=1e-4)
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
    assert isinstance(soft.grad_fn, ShortSort._backward_cls)  # pyright: ignore
    assert [t.data_ptr() for t in soft.grad_fn.saved_tensors] == [keys.data_ptr()]  # pyright: ignore


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "options",
    [{"distribution": "soft"}, {"reach": 2.0}, {"temperature": -1.0}, {"temperature": "hot"}],
    ids=str,
)
@pytest.mark.parametrize("function", [sw.soft_sort, sw.soft_rank, sw.soft_permutation])
def test_bad_arguments_are_refused_by_name(function, options, device):
    (name,) = options
    with sw.engine("triton"), pytest.raises((ValueError, TypeError), match=name):
        function(keys_of(8).to(device), **options)
