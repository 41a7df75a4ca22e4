"""The kernels of soft sorts against the products of matrices, in float64 and on the CPU."""

from collections.abc import Callable

import pytest
import torch
from tests.helpers import seeded
from torch import Tensor

import sparsewire as sw
from sparsewire.sorting.soft_sort._triton import mixing


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


@pytest.mark.parametrize(("n", "features"), [(2, 1), (3, 300), (4, 3), (5, 1), (13, 300), (21, 3)])
def test_payloads_are_mixed_as_by_matrices(n: int, features: int, device: str) -> None:
    """More features than a program has, and fewer."""
    payload = torch.randn(2, n, features, generator=seeded(features))
    agree(lambda k, x: sw.sort_by(k, x, temperature=0.3), (keys_of(n, 2), payload), device)


@pytest.mark.parametrize(
    ("n", "tile", "programs"),
    [(4, 1, 1), (4, 8, 1000), (21, 1, 1000), (21, 64, 1), (32, 8, 1), (32, 64, 1000)],
)
def test_fours_and_features_are_shared_among_programs(
    n: int, tile: int, programs: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cuts lie between what one program has and the next; features are cut too."""
    monkeypatch.setattr(mixing, "_TILE", tile)
    monkeypatch.setattr(mixing, "_FEATURES", 4)
    monkeypatch.setattr(mixing, "_SUMMED", 2)
    monkeypatch.setattr(mixing, "_PROGRAMS", programs)
    payload = torch.randn(2, n, 5, generator=seeded(n))
    agree(lambda k, x: sw.sort_by(k, x, temperature=0.3), (keys_of(n, 2), payload), device)
    agree(lambda x: sw.soft_rank(x, temperature=0.3), (keys_of(n, 2),), device)


def test_more_cuts_than_a_program_has_at_once(device: str) -> None:
    keys = torch.linspace(-50, 50, 3000).unsqueeze(0)
    agree(lambda x: sw.soft_sort(x, temperature=0.05), (keys,), device, atol=1e-3)


def test_ties_infinities_and_keys_far_apart(device: str) -> None:
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
    payload = torch.randn(12, 6, 2, 5, generator=seeded(1)).to(device)
    with sw.engine("triton"):
        flat = sw.sort_by(keys, payload)
        shaped = sw.sort_by(keys.view(3, 4, 6), payload.view(3, 4, 6, 2, 5))
        none = sw.sort_by(keys[:0], payload[:0])
    assert torch.equal(shaped.flatten(0, 1), flat)
    assert none.shape == (0, 6, 2, 5)


def test_half_precision_is_computed_in_float32(device: str) -> None:
    keys, payload = keys_of(8).bfloat16(), torch.randn(3, 8, 4, generator=seeded(2)).bfloat16()
    with sw.engine("triton"):
        got = sw.sort_by(keys.to(device), payload.to(device), temperature=0.5)
    with sw.engine("reference"):
        want = sw.sort_by(keys.float(), payload.float(), temperature=0.5)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.float().cpu(), want, rtol=1e-2, atol=1e-2)
