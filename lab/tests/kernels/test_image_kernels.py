"""The kernels of images against the plain functions in float64, and who is sent to which."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tests.helpers import pairwise, seeded
from tests.kernels.compare import assert_near, by_kernels, cast, exactly, note_calls
from torch import Tensor
from torch.nn import functional as F

import sparsewire as sw
from sparsewire_lab.attention.convnet import FusedPair
from sparsewire_lab.kernels import conv, conv_relu, pool_relu
from sparsewire_lab.kernels._triton import images, operators

HALVES = (torch.bfloat16, torch.float16)

in_half_precision = pytest.mark.parametrize("dtype", HALVES, ids=str)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that are called, in order."""
    return note_calls(monkeypatch, operators, "thin_conv", "pool_relu")


def convolved(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """What `conv_relu` is, in other words."""
    return F.conv2d(x, weight, bias, padding=1).clamp(min=0)


def pooled(x: Tensor, bias: Tensor, size: int) -> Tensor:
    """What `pool_relu` is, in other words: bias and activation first."""
    return F.max_pool2d((x + bias[:, None, None]).relu(), size)


def by_channels(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same function of an image whose channels lie innermost."""

    def call(x: Tensor, **others: Any) -> Tensor:
        return function(x.contiguous(memory_format=torch.channels_last), **others)

    return call


def conv_case(channels: int, wide: int, h: int = 5, w: int = 7) -> tuple[dict[str, Tensor], Tensor]:
    """Weights and bias in float32, and two images."""
    generator = seeded(0)
    weight = torch.randn(wide, channels, 3, 3, generator=generator)
    bias = torch.randn(wide, generator=generator)
    return {"weight": weight, "bias": bias}, torch.randn(2, channels, h, w, generator=generator)


def pool_case(wide: int, h: int, w: int, batch: int = 2) -> dict[str, Tensor]:
    generator = seeded(0)
    x = torch.randn(batch, wide, h, w, generator=generator)
    return {"x": x, "bias": torch.randn(wide, generator=generator) / 2}


# Convolutions of thin images.


SIDES = [(1, 1), (6, 1), (5, 7), (13, 12)]


@pytest.mark.parametrize("case", pairwise(sides=SIDES, wide=[16, 32, 64], channels=[1, 2, 3]))
def test_convolutions_of_thin_images(case, device, calls):
    leaves, x = conv_case(case["channels"], case["wide"], *case["sides"])
    got = by_kernels(conv_relu, leaves, device, x=x)
    assert calls == ["thin_conv"]
    assert_near(got, exactly(convolved, leaves, x=x.double()))


@pytest.mark.parametrize(
    ("channels", "side", "padding"),
    [
        *[(1, 1, 0), (1, 1, 2), (7, 2, 1), (7, 2, 3), (1, 4, 0), (1, 4, 3), (1, 5, 0), (1, 5, 2)],
        *[(3, 3, 0), (3, 3, 3)],
    ],
)
def test_windows_of_any_size_with_any_padding(channels, side, padding, device, calls):
    """And without bias, where what is negative stays."""
    leaves, x = conv_case(channels, 16, 6, 5)
    leaves["weight"] = torch.randn(16, channels, side, side, generator=seeded(2))
    got = by_kernels(conv_relu, leaves, device, x=x, padding=padding)

    def convolved(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.conv2d(x, weight, bias, padding=padding).relu()

    assert_near(got, exactly(convolved, leaves, x=x.double()))
    got = by_kernels(conv, {"weight": leaves["weight"]}, device, x=x, padding=padding)
    want = exactly(
        lambda weight: F.conv2d(x.double(), weight, padding=padding), {"weight": leaves["weight"]}
    )
    assert_near(got, want)
    assert (got["output"] < 0).any()
    assert calls == ["thin_conv"] * 2


@pytest.mark.parametrize("pixels", [16, 32])
@pytest.mark.parametrize("programs", [1, 2, 1000])
def test_gradients_of_weights_are_shared_among_programs(programs, pixels, device, monkeypatch):
    """Each takes several blocks of pixels, not equally many, and the last block is not full."""
    monkeypatch.setattr(images, "_PIXELS", pixels)
    monkeypatch.setattr(images, "_PROGRAMS", programs)
    leaves, x = conv_case(2, 16, 7, 5)
    assert_near(
        by_kernels(conv_relu, leaves, device, x=x), exactly(convolved, leaves, x=x.double())
    )


@in_half_precision
@pytest.mark.parametrize("channels", [1, 3])
def test_convolutions_in_half_precision_are_rounded_once(channels, dtype, device):
    leaves, x = conv_case(channels, 32, 9, 8)
    leaves, x = cast(leaves, dtype), x.to(dtype)
    got = by_kernels(conv_relu, leaves, device, x=x)
    assert {tensor.dtype for tensor in got.values()} == {dtype}
    assert_near(got, exactly(convolved, leaves, x=x.double()), torch.finfo(dtype).eps / 2)


@in_half_precision
def test_autocast_decides_the_dtype_of_a_convolution(dtype, device, calls):
    leaves, x = conv_case(1, 16)
    leaves, x = {n: t.to(device).requires_grad_() for n, t in leaves.items()}, x.to(device)
    with sw.engine("triton"), torch.autocast(device, dtype=dtype):
        y = conv_relu(x, leaves["weight"], leaves["bias"])
    assert calls == ["thin_conv"]
    assert y.dtype == dtype
    want = convolved(x.double(), **cast(leaves, torch.float64))
    assert (y.double() - want).norm() < 2 * torch.finfo(dtype).eps * want.norm()
    y.float().sum().backward()
    for name, leaf in leaves.items():
        assert leaf.grad is not None, name
        assert leaf.grad.dtype == torch.float32, name


# Who is not sent to the kernel of thin images.


OTHERS = {  # channels, width, and what happens to leaves and x
    "too many channels": (4, 16, None),
    "too narrow": (1, 8, None),
    "no power of two": (1, 24, None),
    "too wide": (1, 512, None),
    "float64": (1, 16, lambda t: t.double()),
    "strided": (2, 16, lambda t: t.mT if len(t) == 2 and t.dim() == 4 else t),
    "no images": (1, 16, lambda t: t[:0] if len(t) == 2 else t),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_images_are_convolved_by_pytorch(kind, device, calls):
    channels, wide, change = OTHERS[kind]
    leaves, x = conv_case(channels, wide)
    if change is not None:
        leaves, x = {name: change(t) for name, t in leaves.items()}, change(x)
    got = by_kernels(conv_relu, leaves, device, x=x)
    assert "thin_conv" not in calls
    assert_near(got, exactly(convolved, leaves, x=x.double()), 4e-6)


def test_images_that_want_gradients_are_convolved_by_pytorch(device, calls):
    leaves, x = conv_case(1, 16)
    leaves["x"] = x
    got = by_kernels(conv_relu, leaves, device)
    assert "thin_conv" not in calls
    assert_near(got, exactly(convolved, leaves))


def test_transforms_of_functions_are_left_to_pytorch(device, calls):
    leaves, x = conv_case(1, 16)
    weight, bias, x = (t.to(device) for t in (*leaves.values(), x))
    weights = torch.stack([weight, -weight])
    with sw.engine("triton"):
        gradient = torch.func.grad(lambda w: conv_relu(x, w, bias).sum())(weight)
        maps = torch.func.vmap(conv_relu, in_dims=(None, 0, None))(x, weights, bias)
        pools = torch.func.vmap(lambda x: pool_relu(x, bias[:1], 2))(x.unsqueeze(1))
    assert calls == []
    leaf = weight.clone().requires_grad_()
    (want,) = torch.autograd.grad(convolved(x, leaf, bias).sum(), leaf)
    torch.testing.assert_close(gradient, want)
    torch.testing.assert_close(maps, torch.stack([convolved(x, w, bias) for w in weights]))
    torch.testing.assert_close(pools, pooled(x, bias[:1], 2).unsqueeze(1))


# Pools.


@pytest.mark.parametrize(
    ("wide", "h", "w", "size"),
    [
        *[(1, 8, 8, 1), (1, 8, 8, 3), (3, 9, 10, 2), (3, 9, 10, 4), (16, 4, 4, 2), (32, 7, 5, 3)],
        *[(64, 6, 11, 4), (64, 6, 11, 1), (100, 5, 4, 2), (100, 5, 4, 3), (256, 4, 5, 1)],
        *[(256, 4, 5, 4)],
    ],
)
def test_pools_of_any_width_and_size(wide, h, w, size, device, calls):
    """Rows and columns that fill no square are left out, and get no gradient."""
    leaves = pool_case(wide, h, w)
    got = by_kernels(by_channels(pool_relu), leaves, device, size=size)
    assert calls == ["pool_relu"]
    assert_near(got, exactly(pooled, leaves, size=size))
    gradient = got["gradient of x"]
    assert not gradient[:, :, h // size * size :].any()
    assert not gradient[..., w // size * size :].any()


@pytest.mark.parametrize("elements", [1, 64, 4096])
def test_pools_are_shared_among_programs(elements, device, monkeypatch):
    """One pixel for each, several of 24 channels, and all of them: the bias has one gradient."""
    monkeypatch.setattr(images, "_ELEMENTS", elements)
    leaves = pool_case(24, 7, 6)
    got = by_kernels(by_channels(pool_relu), leaves, device, size=2)
    assert_near(got, exactly(pooled, leaves, size=2))


@in_half_precision
@pytest.mark.parametrize("size", [1, 2])
def test_pools_in_half_precision_are_rounded_once(size, dtype, device):
    leaves = cast(pool_case(24, 9, 8), dtype)
    got = by_kernels(by_channels(pool_relu), leaves, device, size=size)
    assert {tensor.dtype for tensor in got.values()} == {dtype}
    assert_near(got, exactly(pooled, leaves, size=size), torch.finfo(dtype).eps / 2)


def test_a_bias_in_float32_keeps_its_digits_beside_a_half_image(device):
    leaves = pool_case(8, 4, 4)
    leaves["x"] = leaves["x"].bfloat16()
    got = by_kernels(by_channels(pool_relu), leaves, device, size=2)
    assert got["output"].dtype == got["gradient of x"].dtype == torch.bfloat16
    assert got["gradient of bias"].dtype == torch.float32
    want = exactly(pooled, leaves, size=2)
    assert_near({"output": got["output"]}, {"output": want["output"]}, 2**-8)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("kind", ["all the same", "two of each square", "zeros of both signs"])
def test_of_equals_the_first_gets_the_gradient(kind, size, device):
    """As in torch's own pool."""
    x = torch.ones(1, 2, 8, 8)
    if kind == "two of each square":
        x = torch.randint(2, (1, 2, 8, 8), generator=seeded(3)).float()
    if kind == "zeros of both signs":
        x = torch.where(torch.rand(1, 2, 8, 8, generator=seeded(3)) < 0.5, 0.0, -0.0)
    leaves = {"x": x, "bias": torch.full((2,), 0.5)}
    got = by_kernels(by_channels(pool_relu), leaves, device, size=size)

    def plainly(x: Tensor, bias: Tensor) -> Tensor:
        return F.max_pool2d(x, size) + bias[:, None, None]

    assert_near(got, exactly(plainly, leaves))


def test_outputs_lie_by_channels_however_gradients_come(device):
    leaves, x = conv_case(2, 16, 6, 6)
    weight, bias, x = (t.to(device) for t in (*leaves.values(), x))
    weight.requires_grad_()
    with sw.engine("triton"):
        y = conv_relu(x, weight, bias)
        z = pool_relu(y, bias, 2)
    for tensor in (y, z):
        assert tensor.is_contiguous(memory_format=torch.channels_last)
    weights = torch.randn(z.shape, generator=seeded(5)).to(device)
    ways = [weights, weights.contiguous(memory_format=torch.channels_last), weights.mT.clone().mT]
    gradients = [torch.autograd.grad(z, weight, w, retain_graph=True)[0] for w in ways]
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0])
    # An expanded gradient, as a sum sends it back.
    (summed,) = torch.autograd.grad(z.sum(), weight, retain_graph=True)
    (ones,) = torch.autograd.grad(z, weight, torch.ones_like(z))
    torch.testing.assert_close(summed, ones)


@pytest.mark.parametrize("kind", ["rows innermost", "strided", "too wide", "no images", "float64"])
def test_other_images_are_pooled_by_pytorch(kind, device, calls):
    wide, batch = 300 if kind == "too wide" else 4, 0 if kind == "no images" else 2
    leaves = pool_case(wide, 6, 6, batch)
    if kind == "float64":
        leaves = cast(leaves, torch.float64)

    def of_kind(pool: Callable[..., Tensor], x: Tensor, bias: Tensor) -> Tensor:
        if kind != "rows innermost":
            x = x.contiguous(memory_format=torch.channels_last)
        every = 2 if kind == "strided" else 1
        return pool(x[:, ::every], bias[::every], 2)

    got = by_kernels(partial(of_kind, pool_relu), leaves, device)
    assert calls == []
    assert_near(got, exactly(partial(of_kind, pooled), leaves))


def test_large_squares_send_the_gradient_to_the_largest(device):
    leaves = pool_case(2, 17, 17)
    leaves["x"][:, :, -1] += 10
    got = by_kernels(by_channels(pool_relu), leaves, device, size=17)
    assert_near(got, exactly(pooled, leaves, size=17))


def test_squares_larger_than_the_image_are_refused(device):
    with pytest.raises(RuntimeError, match="too small"):
        by_kernels(by_channels(pool_relu), pool_case(2, 3, 3), device, size=4)


# What is not a number.


@pytest.mark.parametrize("where", [0, 1, 2, 3])
def test_a_square_with_a_nan_is_nan(where, device):
    x = torch.randn(1, 3, 4, 4, generator=seeded(0))
    x[0, 1, 2 + where // 2, where % 2] = float("nan")
    with sw.engine("triton"):
        y = by_channels(pool_relu)(x.to(device), bias=torch.zeros(3, device=device), size=2).cpu()
    want = F.relu(F.max_pool2d(x, 2))
    assert want.isnan().nonzero().tolist() == [[0, 1, 1, 0]]
    torch.testing.assert_close(y, want, equal_nan=True)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_bias_that_is_not_finite_shows(value, device):
    x, bias = torch.randn(1, 2, 4, 4, generator=seeded(0)), torch.tensor([1.0, value])
    with sw.engine("triton"):
        y = by_channels(pool_relu)(x.to(device), bias=bias.to(device), size=2).cpu()
    torch.testing.assert_close(y, pooled(x, bias, 2), equal_nan=True)


def test_windows_with_a_nan_are_nan(device):
    leaves, x = conv_case(1, 16, 6, 6)
    x[0, 0, 3, 2] = float("nan")
    with sw.engine("triton"):
        weight, bias = (t.to(device) for t in leaves.values())
        y = conv_relu(x.to(device), weight, bias).cpu()
    want = convolved(x, **leaves)
    assert want.isnan()[0, 0].sum() == 9
    torch.testing.assert_close(y, want, equal_nan=True, rtol=1e-5, atol=1e-5)


# Second derivatives.


def second(function: Callable[..., Tensor], leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of a random weighting of all gradients: the gradient of what was sent back."""
    leaves = {n: t.detach().clone().requires_grad_() for n, t in leaves.items()}
    y = function(**leaves)
    sent = torch.randn(y.shape, dtype=torch.float64, generator=seeded(4))
    sent = sent.to(y.device, y.dtype).requires_grad_()
    gradients = torch.autograd.grad(y, list(leaves.values()), sent, create_graph=True)
    generator = seeded(5)
    total = sent.new_zeros(())
    for gradient in gradients:
        weights = torch.randn(gradient.shape, dtype=torch.float64, generator=generator)
        total = total + (gradient * weights.to(gradient)).sum()
    named = {f"gradient of {n}": g.detach().cpu() for n, g in zip(leaves, gradients, strict=True)}
    return named | {"of what was sent": torch.autograd.grad(total, sent)[0].cpu()}


def test_second_derivatives_of_a_convolution(device, calls):
    leaves, x = conv_case(2, 16)
    with sw.engine("triton"):
        got = second(
            lambda **t: conv_relu(x.to(device), **t), {n: t.to(device) for n, t in leaves.items()}
        )
    assert calls == ["thin_conv"]
    want = second(lambda **t: convolved(x.double(), **t), cast(leaves, torch.float64))
    assert_near(got, want)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_second_derivatives_of_a_pool(size, device, calls):
    leaves = pool_case(6, 7, 5)
    with sw.engine("triton"):
        got = second(
            lambda **t: by_channels(pool_relu)(**t, size=size),
            {n: t.to(device) for n, t in leaves.items()},
        )
    assert calls == ["pool_relu"]
    assert_near(got, second(lambda **t: pooled(**t, size=size), cast(leaves, torch.float64)))


# Both together.


@pytest.mark.parametrize("pool", [1, 2])
def test_a_pair_of_convolutions(pool, device, calls):
    """As torch's own modules compute it in float64: every parameter by its name."""
    pair = FusedPair(1, 16, pool)
    x = torch.rand(2, 1, 9, 7, generator=seeded(0))
    leaves = {name: p.detach() for name, p in pair.named_parameters()}

    def ours(**parameters: Tensor) -> Tensor:
        return torch.func.functional_call(pair, parameters, (x.to(device),))

    def theirs(**p: Tensor) -> Tensor:
        y = convolved(x.double(), p["first.weight"], p["first.bias"])
        y = convolved(y, p["second.weight"], p["second.bias"])
        return F.max_pool2d(y, pool)

    got = by_kernels(ours, leaves, device)
    assert calls == ["thin_conv", "pool_relu"]
    assert_near(got, exactly(theirs, leaves))
