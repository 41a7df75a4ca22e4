"""Convolution and pool with bias and activation: against loops, and PyTorch's own steps."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import assert_same, output_and_gradients, seeded, seeds
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional as F

from sparsewire_lab.kernels import conv_relu, pool_relu

sides = st.integers(1, 9)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=seeded(seed))


def test_a_convolution_small_enough_to_check_by_eye():
    x = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    weight = torch.zeros(3, 1, 3, 3)
    weight[0, 0, 1, 1] = 1.0  # what is there
    weight[1, 0, 1, 2] = 1.0  # what is to the right of it
    weight[2, 0, 0, 1] = -1.0  # less than what is above it
    y = conv_relu(x, weight, torch.tensor([-2.5, 0.0, 2.0]))
    assert y.tolist() == [
        [
            [[0.0, 0.0], [0.5, 1.5]],
            [[2.0, 0.0], [4.0, 0.0]],
            [[2.0, 2.0], [1.0, 0.0]],
        ]
    ]


def test_a_pool_small_enough_to_check_by_eye():
    x = torch.tensor([[1.0, 2.0, -5.0, -1.0, 9.0], [0.0, -3.0, -2.0, -4.0, 9.0], [9.0] * 5])
    x = torch.stack([x, -x]).unsqueeze(0)
    y = pool_relu(x, torch.tensor([1.5, -2.5]), 2)
    # The last row and column fill no square. Of −x the largest are 3 and 5.
    assert y.tolist() == [[[[3.5, 0.5]], [[0.5, 2.5]]]]


@given(sides=st.tuples(sides, sides), size=st.integers(1, 4), wide=st.integers(1, 5), seed=seeds)
def test_the_pool_may_come_before_bias_and_activation(sides, size, wide, seed):
    """Every output and gradient is that of bias, activation and pool, one after the other."""
    h, w = max(sides[0], size), max(sides[1], size)
    leaves = {"x": random(2, wide, h, w, seed=seed), "bias": random(wide, seed=seed + 1)}

    def plainly(x: Tensor, bias: Tensor) -> Tensor:
        return F.max_pool2d(torch.relu(x + bias.view(-1, 1, 1)), size)

    got = output_and_gradients(lambda x, bias: pool_relu(x, bias, size), leaves)
    assert got["output"].shape == (2, wide, h // size, w // size)
    assert_same(got, output_and_gradients(plainly, leaves))


@pytest.mark.parametrize("innermost", ["rows", "channels"])
@given(sides=st.tuples(sides, sides), channels=st.integers(1, 4), seed=seeds)
def test_a_convolution_is_what_pytorch_does_step_by_step(innermost, sides, channels, seed):
    x = random(2, channels, *sides, seed=seed)
    leaves = {
        "x": x.contiguous(memory_format=torch.channels_last) if innermost == "channels" else x,
        "weight": random(16, channels, 3, 3, seed=seed + 1),
        "bias": random(16, seed=seed + 2),
    }

    def plainly(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.relu(F.conv2d(F.pad(x, (1,) * 4), weight) + bias.view(-1, 1, 1))

    assert_same(output_and_gradients(conv_relu, leaves), output_and_gradients(plainly, leaves))


def test_derivatives():
    x, weight, bias = random(1, 2, 3, 4), random(2, 2, 3, 3), random(2)
    inputs = [tensor.requires_grad_() for tensor in (x, weight, bias)]
    assert gradcheck(conv_relu, inputs)
    assert gradgradcheck(conv_relu, inputs)
    wide = random(2, 2, 5, 4).requires_grad_()
    for size in (1, 2, 3):
        assert gradcheck(lambda x, b, n=size: pool_relu(x, b, n), [wide, bias])
        assert gradgradcheck(lambda x, b, n=size: pool_relu(x, b, n), [wide, bias])


def test_what_is_not_a_number_shows_where_it_is_read():
    x, weight = random(1, 1, 6, 6), random(2, 1, 3, 3)
    x[0, 0, 0, 4] = float("nan")
    y = conv_relu(x, weight, torch.zeros(2, dtype=torch.float64))
    near = torch.zeros(6, 6, dtype=torch.bool)
    near[:2, 3:] = True
    assert torch.equal(y.isnan(), near.expand(1, 2, 6, 6))
    pooled = pool_relu(x, torch.zeros(1, dtype=torch.float64), 3)
    assert pooled.isnan().tolist() == [[[[False, True], [False, False]]]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_pool_has_the_dtype_of_its_image(dtype):
    x, bias = random(1, 3, 4, 4).to(dtype), torch.randn(3)
    y = pool_relu(x, bias, 2)
    assert y.dtype == dtype
    want = F.max_pool2d(x.float(), 2) + bias.view(-1, 1, 1)
    torch.testing.assert_close(y.float(), want.relu(), rtol=2e-2, atol=2e-2)
