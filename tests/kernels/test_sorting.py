"""The kernels of the public functions of sorting compute what the reference does."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.helpers import assert_same, output_and_gradients, seeded
from tests.sorting.cases import ROWS, assert_as_reference
from torch import Tensor

import sparsewire as sw
from sparsewire.sorting import half, order_loss


# The first product in a backward pass of a process creates its context.
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")
@pytest.mark.parametrize(("name", "row"), ROWS, ids=str)
def test_values_and_gradients_are_those_of_the_reference(name, row, device):
    assert_as_reference(name, row, "triton", device=device)


def halved(keys: Tensor) -> Tensor:
    return half(keys, 3)


def losses(keys: Tensor) -> Tensor:
    """Of an order with ties."""
    target = torch.arange(keys.numel(), device=keys.device).view(keys.shape) * 7 % 4
    return order_loss(keys, target, reduction="none")


FUNCTIONS = pytest.mark.parametrize("function", [halved, losses])


@FUNCTIONS
@pytest.mark.parametrize("shape", [(4, 10, 6), (2, 0, 6)], ids=str)
def test_any_leading_dimensions_and_more_rows_than_a_program_has_lanes(function, shape, device):
    keys = torch.randn(shape, generator=seeded(0)).to(device)
    with sw.engine("triton"):
        shaped = function(keys)
    with sw.engine("reference"):
        want = function(keys)
    torch.testing.assert_close(shaped, want, rtol=1e-4, atol=1e-5)


@FUNCTIONS
def test_second_derivatives_are_those_of_the_reference(
    function: Callable[[Tensor], Tensor], device: str
) -> None:
    def slope(keys: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad(function(keys).square().sum(), keys, create_graph=True)
        return slope

    keys = torch.randn(2, 6, generator=seeded(0))
    with sw.engine("triton"):
        got = output_and_gradients(slope, {"keys": keys.to(device)})
    with sw.engine("reference"):
        want = output_and_gradients(slope, {"keys": keys.double()})
    got = {name: tensor.double().cpu() for name, tensor in got.items()}
    assert_same(got, want, rtol=1e-3, atol=1e-4)


def test_halves_of_the_largest_bucket_and_certain_odds(device):
    odds = torch.full((2, 64), 110.0)
    odds[0, ::2] = -110.0
    odds[1, :32] = -3.0
    with sw.engine("triton"):
        got = half(odds.to(device), 32).cpu()
    want = sw.sorting.exact_half(odds.double(), 32)
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5)


def test_losses_of_keys_far_apart_and_far_wrong(device):
    keys = torch.tensor([[400.0, -400.0, 100.0, 0.0], [0.0, 200.0, 400.0, 900.0]])
    target = torch.arange(4).expand(2, 4)

    def run(engine: Any, keys: Tensor) -> dict[str, Tensor]:
        with sw.engine(engine):
            return output_and_gradients(
                lambda keys: order_loss(keys, target.to(keys.device), reduction="none"),
                {"keys": keys},
            )

    got = {name: tensor.double().cpu() for name, tensor in run("triton", keys.to(device)).items()}
    assert_same(got, run("reference", keys.double()), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("engine", ["triton", "fourier", "reference"])
def test_without_ties_equal_targets_have_an_order_in_every_engine(engine, device):
    keys, target = torch.tensor([1.0, 2.0], device=device), torch.tensor([7, 7], device=device)
    with sw.engine(engine):
        strict, loose = (sw.order_loss(keys, target, ties=ties).item() for ties in (False, True))
    assert (round(strict, 4), round(loose, 4)) == (0.3133, 0.0)
