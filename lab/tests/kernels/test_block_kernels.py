"""The kernels of a block of convolutions against plain PyTorch in float64."""

from typing import Any

import pytest
import torch
from tests.helpers import seeded
from tests.kernels.compare import assert_near, by_kernels, cast, exactly, note_calls
from torch import Tensor, nn
from torch.nn import functional as F

import sparsewire as sw
from sparsewire_lab.kernels import conv, conv_relu, relu_norm_pool
from sparsewire_lab.kernels._triton import images, narrow_conv, norm_pool, operators
from sparsewire_lab.sorting.networks import KeyNetwork

EPS = 1e-3  # not torch's own, which would be taken by mistake too


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that are called, in order."""
    return note_calls(monkeypatch, operators, "narrow_conv", "norm_pool")


def by_channels(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def conv_case(h: int, w: int, batch: int = 2) -> dict[str, Tensor]:
    generator = seeded(0)
    x = torch.randn(batch, 16, h, w, generator=generator)
    weight = torch.randn(16, 16, 3, 3, generator=generator) / 6
    return {"x": x, "weight": weight, "bias": torch.randn(16, generator=generator)}


def ours(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return conv_relu(by_channels(x), weight, bias)


def plainly(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.conv2d(x, weight, bias, padding=1).relu()


def norm_case(wide: int, h: int, w: int, batch: int = 3) -> dict[str, Tensor]:
    """An image, and weights of both signs: where one is negative, the smallest is kept."""
    generator = seeded(0)
    x = torch.randn(batch, wide, h, w, generator=generator) + 0.3
    scale = torch.randn(wide, generator=generator)
    return {"x": x, "scale": scale, "shift": torch.randn(wide, generator=generator)}


def normalised(x: Tensor, scale: Tensor, shift: Tensor, size: int) -> Tensor:
    """By the kernels."""
    return operators.norm_pool(by_channels(x), scale, shift, EPS, size)[0]


def by_definition(x: Tensor, scale: Tensor, shift: Tensor, size: int) -> Tensor:
    x = x.relu()
    mean = x.mean((0, 2, 3), keepdim=True)
    variance = (x - mean).square().mean((0, 2, 3), keepdim=True)
    normal = (x - mean) / (variance + EPS).sqrt()
    return F.max_pool2d(normal * scale[:, None, None] + shift[:, None, None], size)


# Convolutions.


@pytest.mark.parametrize(("h", "w"), [(1, 1), (1, 6), (6, 1), (5, 7), (13, 12)])
def test_convolutions_of_narrow_images(h, w, device, calls):
    leaves = conv_case(h, w)
    assert_near(by_kernels(ours, leaves, device), exactly(plainly, leaves))
    assert calls == ["narrow_conv"]


def test_convolutions_without_bias_and_activation(device, calls):
    leaves = conv_case(5, 4)
    del leaves["bias"]
    got = by_kernels(lambda x, weight: conv(by_channels(x), weight), leaves, device)
    assert calls == ["narrow_conv"]
    assert_near(got, exactly(lambda x, weight: F.conv2d(x, weight, padding=1), leaves))
    assert (got["output"] < 0).any()


@pytest.mark.parametrize("pixels", [16, 32])
@pytest.mark.parametrize("programs", [1, 2, 1000])
def test_pixels_are_shared_among_programs(programs, pixels, device, monkeypatch):
    """Each takes several blocks of pixels, not equally many, and the last block is not full."""
    for name, number in (("_PIXELS", pixels), ("_PROGRAMS", programs)):
        monkeypatch.setattr(narrow_conv, name, number)
        monkeypatch.setattr(narrow_conv, f"{name}_BACK", number)
    leaves = conv_case(7, 5)
    assert_near(by_kernels(ours, leaves, device), exactly(plainly, leaves))


def test_pictures_do_not_see_each_other(device):
    """What one of them is does not change the next, which begins where it ends."""
    leaves = conv_case(3, 3, batch=3)
    first = by_kernels(ours, leaves, device)["output"]
    leaves["x"][1] = 100.0
    second = by_kernels(ours, leaves, device)["output"]
    assert torch.equal(first[[0, 2]], second[[0, 2]])
    assert not torch.equal(first[1], second[1])


def test_half_precision_is_rounded_once(device):
    leaves = cast(conv_case(6, 7), torch.bfloat16)
    got = by_kernels(ours, leaves, device)
    assert {t.dtype for t in got.values()} == {torch.bfloat16}
    want = exactly(plainly, leaves)
    # An output near zero may be on its other side, so that gradients differ a little more.
    assert_near({"output": got["output"]}, {"output": want["output"]}, 2**-7)
    gradients = [name for name in want if name != "output"]
    assert_near({n: got[n] for n in gradients}, {n: want[n] for n in gradients}, 2**-6)


def test_weights_in_float32_get_gradients_in_float32(device):
    leaves = conv_case(4, 4)
    leaves["x"] = leaves["x"].bfloat16()
    got = by_kernels(ours, leaves, device)
    assert got["output"].dtype == got["gradient of x"].dtype == torch.bfloat16
    assert got["gradient of weight"].dtype == got["gradient of bias"].dtype == torch.float32


def test_other_images_are_convolved_by_pytorch(device, calls):
    leaves = conv_case(4, 5)
    wide = torch.cat([leaves["weight"]] * 2)
    others = {
        "more channels": {**leaves, "weight": wide, "bias": torch.cat([leaves["bias"]] * 2)},
        "float64": cast(leaves, torch.float64),
    }
    for kind, case in others.items():
        assert_near(by_kernels(ours, case, device), exactly(plainly, case), 4e-6)
        assert calls == [], kind
    got = by_kernels(conv_relu, leaves, device)  # channels outermost
    assert calls == []
    assert_near(got, exactly(plainly, leaves))


# Normalisation and pool.


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize(("wide", "h", "w"), [(1, 4, 4), (3, 5, 7), (16, 6, 4), (100, 3, 5)])
def test_normalised_pools(wide, h, w, size, device):
    """Rows and columns that fill no square still count for mean and variance."""
    leaves = norm_case(wide, h, w)
    got = by_kernels(normalised, leaves, device, size=size)
    assert_near(got, exactly(by_definition, leaves, size=size), 2e-5)
    assert (leaves["scale"] < 0).any() or wide == 1


@pytest.mark.parametrize("elements", [1, 64, 4096])
@pytest.mark.parametrize("programs", [1, 3, 1000])
def test_sums_are_shared_among_programs(programs, elements, device, monkeypatch):
    monkeypatch.setattr(norm_pool, "_PROGRAMS", programs)
    monkeypatch.setattr(images, "_ELEMENTS", elements)
    leaves = norm_case(6, 5, 4)
    got = by_kernels(normalised, leaves, device, size=2)
    assert_near(got, exactly(by_definition, leaves, size=2), 2e-5)


def test_half_images_are_normalised_in_float32(device):
    leaves = norm_case(8, 6, 6)
    leaves["x"] = leaves["x"].bfloat16()
    got = by_kernels(normalised, leaves, device, size=2)
    want = exactly(by_definition, leaves, size=2)
    assert got["output"].dtype == got["gradient of x"].dtype == torch.bfloat16
    assert got["gradient of scale"].dtype == torch.float32
    assert_near({"output": got["output"]}, {"output": want["output"]}, 2**-8)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_the_layer_s_statistics_follow_as_in_pytorch(momentum, device, calls):
    x = norm_case(4, 6, 6)["x"].to(device)
    layers = [nn.BatchNorm2d(4, momentum=momentum).to(device) for _ in range(2)]
    for part in (x, 2 * x + 1):
        with sw.engine("triton"):
            got = relu_norm_pool(by_channels(part), layers[0], 2)
        want = F.max_pool2d(layers[1](part.relu()), 2)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert calls == ["norm_pool"] * 2
    for (name, mine), theirs in zip(
        layers[0].state_dict().items(), layers[1].state_dict().values(), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5, msg=name)
    with sw.engine("triton"):  # in use, it is left to PyTorch
        relu_norm_pool(by_channels(x), layers[0].eval(), 2)
    assert calls == ["norm_pool"] * 2


# Together.


def test_the_key_network_by_kernels_is_that_of_pytorch(device, calls):
    """All gradients by name, in training; and what evaluation returns afterwards."""
    x = torch.rand(2, 2, 1, 28, 28, generator=seeded(1)).to(device)
    torch.manual_seed(0)
    network: Any = KeyNetwork(places=1).to(device)
    network.to(memory_format=torch.channels_last)
    exact = KeyNetwork(places=1).to(device).double()
    exact.load_state_dict(network.state_dict())
    with sw.engine("triton"):
        keys = network(x)
        keys.square().sum().backward()
    assert calls == ["narrow_conv"] * 2 + ["norm_pool"] * 3
    with sw.engine("reference"):
        want = exact(x.double())
        want.square().sum().backward()
    assert_near({"keys": keys}, {"keys": want}, 1e-4)
    mine = {n: p.grad for n, p in network.named_parameters()}
    # Gradients that cancel are small beside what they are made of: judged all together. Where two
    # pixels of a square are equal but for rounding, the other may be the largest, which moves some
    # of a gradient: of thousands of pixels, one or two.
    whole = sum(float(p.grad.square().sum()) for p in exact.parameters() if p.grad is not None)
    for name, p in exact.named_parameters():
        gradient, other = p.grad, mine[name]
        assert gradient is not None
        assert other is not None, name
        error = float((other.double() - gradient).norm())
        assert error < 1e-2 * float(gradient.norm()) + 1e-5 * whole**0.5, name
    with sw.engine("triton"), torch.no_grad():
        evaluated = network.eval()(x)
    with torch.no_grad():
        assert_near({"keys": evaluated}, {"keys": exact.eval()(x.double())}, 1e-4)
