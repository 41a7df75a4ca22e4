"""The kernels of soft sorts against the products of matrices, in float64 and on the CPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.helpers import seeded
from torch import Tensor

import sparsewire as sw
from sparsewire.sorting.soft_sort._triton import mixing

SIZES = (2, 3, 4, 5, 8, 13, 16, 21)


def with_gradients(
    function: Callable[..., Tensor], inputs: tuple[Tensor, ...], weight: Tensor
) -> list[Tensor]:
    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    out = function(*leaves)
    found = torch.autograd.grad(out, leaves, weight.to(out))
    return [t.detach().double().cpu() for t in (out, *found)]


def agree(
    function: Callable[..., Tensor], inputs: tuple[Tensor, ...], device: str, atol: float = 1e-4
) -> None:
    """Results and gradients: kernels in float32, matrices in float64."""
    weight = torch.randn(function(*inputs).shape, generator=seeded(9))
    with sw.engine("reference"):
        want = with_gradients(function, tuple(t.double() for t in inputs), weight)
    with sw.engine("triton"):
        got = with_gradients(function, tuple(t.to(device) for t in inputs), weight.to(device))
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=atol)


def keys_of(n: int, batch: int = 3) -> Tensor:
    return torch.randn(batch, n, generator=seeded(n))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("distribution", ["student", "logistic"])
@pytest.mark.parametrize("function", [sw.soft_sort, sw.soft_rank])
def test_numbers_are_mixed_as_by_matrices(
    function: Callable[..., Tensor], distribution: str, n: int, device: str
) -> None:
    agree(lambda x: function(x, temperature=0.5, distribution=distribution), (keys_of(n),), device)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("features", [1, 3, 300])
def test_things_are_mixed_as_by_matrices(n: int, features: int, device: str) -> None:
    """More features than a program has, and fewer."""
    things = torch.randn(2, n, features, generator=seeded(features))
    agree(lambda k, x: sw.sort_by(k, x, temperature=0.3), (keys_of(n, 2), things), device)


@pytest.mark.parametrize("programs", [1, 1000])
@pytest.mark.parametrize("tile", [1, 8, 64])
@pytest.mark.parametrize("n", [4, 21, 32])
def test_fours_and_features_are_shared_among_programs(
    n: int, tile: int, programs: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cuts lie between what one program has and the next; features are cut too."""
    monkeypatch.setattr(mixing, "_TILE", tile)
    monkeypatch.setattr(mixing, "_FEATURES", 4)
    monkeypatch.setattr(mixing, "_SUMMED", 2)
    monkeypatch.setattr(mixing, "_PROGRAMS", programs)
    things = torch.randn(2, n, 5, generator=seeded(n))
    agree(lambda k, x: sw.sort_by(k, x, temperature=0.3), (keys_of(n, 2), things), device)
    agree(lambda x: sw.soft_rank(x, temperature=0.3), (keys_of(n, 2),), device)


def test_a_permutation_is_that_of_matrices(device: str) -> None:
    agree(lambda x: sw.soft_permutation(x, temperature=0.5), (keys_of(12),), device)


def test_more_cuts_than_a_program_has_at_once(device: str) -> None:
    keys = torch.linspace(-50, 50, 3000).unsqueeze(0)
    agree(lambda x: sw.soft_sort(x, temperature=0.05), (keys,), device, atol=1e-3)


def test_the_default_temperature_and_descending(device: str) -> None:
    agree(lambda x: sw.soft_sort(x, descending=True), (keys_of(10),), device)


def test_ties_infinities_and_things_far_apart(device: str) -> None:
    keys = torch.tensor([[0.0, 0.0, torch.inf, 1e30, -1e30], [1.0, 1.0, 1.0, 1.0, -torch.inf]])
    for function in (sw.soft_rank, sw.soft_sort):
        with sw.engine("reference"):
            want = function(keys, temperature=1.0)
        with sw.engine("triton"):
            x = keys.to(device).requires_grad_()
            got = function(x, temperature=1.0)
            finite = torch.where(got.isfinite(), got, 0.0)
            (grad,) = torch.autograd.grad(finite.sum() + finite[0, 0], x)
        torch.testing.assert_close(got.detach().cpu(), want)
        assert grad.isfinite().all()


def test_any_leading_dimensions(device: str) -> None:
    keys = keys_of(6, 12).to(device)
    things = torch.randn(12, 6, 2, 5, generator=seeded(1)).to(device)
    with sw.engine("triton"):
        flat = sw.sort_by(keys, things)
        shaped = sw.sort_by(keys.view(3, 4, 6), things.view(3, 4, 6, 2, 5))
        none = sw.sort_by(keys[:0], things[:0])
    assert torch.equal(shaped.flatten(0, 1), flat)
    assert none.shape == (0, 6, 2, 5)


@pytest.mark.parametrize("function", [sw.soft_sort, sw.soft_rank])
def test_a_second_derivative_is_that_of_matrices(
    function: Callable[..., Tensor], device: str
) -> None:
    found = []
    for engine, dtype, where in (
        ("triton", torch.float32, device),
        ("reference", torch.float64, "cpu"),
    ):
        x = keys_of(7, 2).to(where, dtype).requires_grad_()
        with sw.engine(engine):  # pyright: ignore[reportArgumentType]
            y = function(x, temperature=0.7)
            (slope,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
            found.append(torch.autograd.grad(slope.square().sum(), x)[0].double().cpu())
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "options",
    [{"reach": 3}, {"distribution": "cauchy"}, {"temperature": torch.tensor(0.5)}],
    ids=str,
)
def test_what_has_no_kernel_of_its_own_is_right_too(options: dict[str, Any], device: str) -> None:
    there: dict[str, Any] = {
        k: v.to(device) if isinstance(v, Tensor) else v for k, v in options.items()
    }
    x = keys_of(9)
    with sw.engine("reference"):
        want = sw.soft_sort(x, **options)
    with sw.engine("triton"):
        got = sw.soft_sort(x.to(device), **there)
    torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-5)


def test_half_precision_is_computed_in_float32(device: str) -> None:
    keys, things = keys_of(8).bfloat16(), torch.randn(3, 8, 4, generator=seeded(2)).bfloat16()
    with sw.engine("triton"):
        got = sw.sort_by(keys.to(device), things.to(device), temperature=0.5)
    with sw.engine("reference"):
        want = sw.sort_by(keys.float(), things.float(), temperature=0.5)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.float().cpu(), want, rtol=1e-2, atol=1e-2)
