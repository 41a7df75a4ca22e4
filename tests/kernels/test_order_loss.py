"""The kernel of the order's likelihood against plain PyTorch in float64."""

import math

import pytest
import torch
from tests.helpers import pairwise, seeded
from torch import Tensor

import sparsewire as sw
from sparsewire.sorting.order_loss import order_loss


def case(n: int, values: int, scale: float = 3.0, batch: int = 5) -> tuple[Tensor, Tensor]:
    generator = seeded(n)
    keys = torch.randn(batch, n, generator=generator) * scale
    return keys, torch.randint(values, (batch, n), generator=generator)


def loss_and_gradient(
    keys: Tensor, target: Tensor, bend: float = math.inf
) -> tuple[Tensor, Tensor]:
    keys = keys.clone().requires_grad_()
    losses = order_loss(keys, target, bend=bend, reduction="none")
    (grad,) = torch.autograd.grad(losses.sum(), keys)
    return losses.detach().cpu(), grad.cpu()


@pytest.mark.parametrize(
    "row",
    pairwise(
        n=[2, 3, 4, 7, 8, 16, 21],
        values=[2, 5, 20, 1000],
        bend=[math.inf, 0.01, 0.5, 100.0],
        scale=[0.1, 3.0, 100.0],
    ),
    ids=str,
)
def test_losses_and_gradients_are_those_of_the_reference(row, device: str) -> None:
    """For keys that are close, so that cuts are doubtful, and right and wrong by far."""
    keys, target = case(row["n"], row["values"], row["scale"])
    keys[0] = target[0] * row["scale"]  # nothing wrong
    with sw.engine("reference"):
        want = loss_and_gradient(keys.double(), target, row["bend"])
    with sw.engine("triton"):
        got = loss_and_gradient(keys.to(device), target.to(device), row["bend"])
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=5e-5)


def test_keys_far_apart_and_far_wrong_stay_finite(device: str) -> None:
    keys = torch.tensor([[400.0, -400.0, 100.0, 0.0], [0.0, 200.0, 400.0, 900.0]])
    target = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 3]])
    with sw.engine("triton"):
        losses, grad = loss_and_gradient(keys.to(device), target.to(device))
    with sw.engine("reference"):
        want = loss_and_gradient(keys.double(), target)
    assert losses.isfinite().all()
    torch.testing.assert_close(losses.double(), want[0], rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(grad.double(), want[1], rtol=1e-4, atol=1e-4)


def test_any_leading_dimensions_and_more_rows_than_a_program_has_lanes(device: str) -> None:
    keys, target = case(6, 50, batch=40)
    there = keys.to(device), target.to(device)
    with sw.engine("triton"):
        flat = order_loss(*there, reduction="none")
        shaped = order_loss(*(t.view(4, 10, 6) for t in there), reduction="none")
    with sw.engine("reference"):
        want = order_loss(keys.double(), target, reduction="none")
    torch.testing.assert_close(flat.double().cpu(), want, rtol=1e-5, atol=1e-5)
    assert torch.equal(shaped.flatten(), flat)


def test_a_second_derivative_is_that_of_the_reference(device: str) -> None:
    keys, target = case(5, 4, batch=2)
    found = []
    for engine, dtype, where in (
        ("triton", torch.float32, device),
        ("reference", torch.float64, "cpu"),
    ):
        x = keys.to(where, dtype).requires_grad_()
        with sw.engine(engine):  # pyright: ignore[reportArgumentType]
            loss = order_loss(x, target.to(where))
            (slope,) = torch.autograd.grad(loss, x, create_graph=True)
            found.append(torch.autograd.grad(slope.square().sum(), x)[0].double().cpu())
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
