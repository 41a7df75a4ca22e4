"""The kernels of exact half-permutations against dynamic programming in float64."""

import pytest
import torch
from tests.helpers import seeded
from torch import Tensor

import sparsewire as sw
from sparsewire.sorting.halves import exact_half, half

SIZES = ((2, 1), (3, 1), (3, 2), (5, 4), (8, 4), (13, 5), (16, 8), (21, 13))


def odds_of(m: int, scale: float, batch: int = 3) -> Tensor:
    """Far from zero on the whole, which must not matter."""
    return scale * torch.randn(batch, m, generator=seeded(m)) + 5


def with_gradient(matrix: Tensor, odds: Tensor, weight: Tensor) -> list[Tensor]:
    (grad,) = torch.autograd.grad(matrix, odds, weight.to(matrix))
    return [t.detach().double().cpu() for t in (matrix, grad)]


@pytest.mark.parametrize(("m", "lower"), SIZES)
@pytest.mark.parametrize("scale", [0.5, 6.0])
def test_matrices_and_gradients_are_those_of_the_reference(
    m: int, lower: int, scale: float, device: str
) -> None:
    given, weight = odds_of(m, scale), torch.randn(3, m, m, generator=seeded(7))
    odds = given.double().requires_grad_()
    want = with_gradient(exact_half(odds, lower), odds, weight)
    odds = given.to(device).requires_grad_()
    with sw.engine("triton"):
        got = with_gradient(half(odds, lower), odds, weight)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(got[0].sum(-1), torch.ones(3, m).double(), rtol=0, atol=1e-4)
    torch.testing.assert_close(got[0].sum(-2), torch.ones(3, m).double(), rtol=0, atol=1e-4)


def test_the_largest_bucket_and_certain_odds(device: str) -> None:
    odds = torch.full((2, 64), 110.0)
    odds[0, ::2] = -110.0
    odds[1, :32] = -3.0
    with sw.engine("triton"):
        got = half(odds.to(device), 32).cpu()
    torch.testing.assert_close(got.double(), exact_half(odds.double(), 32), rtol=1e-4, atol=1e-5)
    places = got[0].argmax(-2)
    assert torch.equal(places[::2], torch.arange(32))
    assert torch.equal(places[1::2], torch.arange(32, 64))


def test_any_leading_dimensions(device: str) -> None:
    odds = odds_of(6, 1.0, batch=8).to(device)
    with sw.engine("triton"):
        assert torch.equal(half(odds.view(2, 4, 6), 3).flatten(0, 1), half(odds, 3))
        assert half(odds[:0], 3).shape == (0, 6, 6)


def test_a_second_derivative_is_that_of_the_reference(device: str) -> None:
    found = []
    for dtype, where in ((torch.float32, device), (torch.float64, "cpu")):
        odds = odds_of(5, 1.0).to(where, dtype).requires_grad_()
        with sw.engine("triton" if where == device and dtype == torch.float32 else "reference"):
            (slope,) = torch.autograd.grad(half(odds, 2).square().sum(), odds, create_graph=True)
            found.append(torch.autograd.grad(slope.square().sum(), odds)[0].double().cpu())
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4)
