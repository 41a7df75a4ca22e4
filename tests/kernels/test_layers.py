"""Layers on the kernels: the numbers of plain PyTorch, and those of the stages one by one."""

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
import torch
from tests.helpers import seeded
from tests.kernels.compare import assert_near
from torch import Tensor, nn

import sparsewire as sw
from sparsewire.nn import apply
from sparsewire.ops import mark_repeats, spread_reference


def layers() -> list[sw.HyperLayer]:
    return [
        sw.SparseLayer((40,), (30,), tuples=50, bias=True),
        sw.SparseLayer((40,), (30,), tuples=50, context=5, wirings=3, density="student"),
        sw.SparseLayer(
            (4, 10), (30,), template=sw.fan_in((30,), (4, 10), 2), share_values=[0] * 60
        ),
        sw.HyperLayer(sw.LowerTriangular(20), (40,), (30,)),
        sw.HyperLayer(sw.Banded(2, 1, 20), (40,), (30,)),
        sw.HyperLayer(sw.BlockDiagonal(5, 8), (40,), (30,)),
        sw.HyperLayer(sw.Convolution((3,), 8), (4, 10), (3, 10)),
    ]


NUMBERS = range(len(layers()))


class Look(nn.Module):
    """A source that reads the input: raw numbers (*b, k, r + 2) for each instance."""

    def __init__(self, in_shape: Sequence[int], tuples: int, rank: int) -> None:
        super().__init__()
        self.dims, self.sizes = len(in_shape), (tuples, rank + 2)
        self.net = nn.Linear(math.prod(in_shape), math.prod(self.sizes))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x.flatten(-self.dims)).unflatten(-1, self.sizes)


every_layer = pytest.mark.parametrize("number", NUMBERS)


def make(number: int, device: str) -> tuple[sw.HyperLayer, Tensor]:
    """A layer in float64, and an input."""
    torch.manual_seed(number)
    layer = layers()[number].double()
    x = torch.randn(6, *cast(Any, layer.in_shape), dtype=torch.float64, generator=seeded(7))
    return layer.to(device), x.to(device)


def results(layer: sw.HyperLayer, x: Tensor, run: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """Output of a pass, and the gradients of input and parameters, by name, on the CPU."""
    x = x.detach().requires_grad_()
    y = run(x)
    weights = torch.randn(y.shape, dtype=torch.float64, generator=seeded(1)).to(y)
    names, parameters = zip(*layer.named_parameters(), strict=True)
    found = torch.autograd.grad(y, (x, *parameters), weights, allow_unused=True)
    named = zip(("y", "x", *names), (y.detach(), *found), strict=True)
    return {name: tensor.cpu() for name, tensor in named if tensor is not None}


@pytest.mark.parametrize("mode", ["rounded", "expected"])
@every_layer
def test_layers_agree_with_plain_pytorch(number, mode, device):
    layer, x = make(number, device)
    found = {}
    for engine in ("triton", "chunked"):
        with sw.engine(engine):
            found[engine] = results(layer, x, lambda x: layer(x, mode=mode))
    names = {name for name, _ in layer.named_parameters()} if mode == "expected" else set()
    assert names <= found["triton"].keys()
    assert_near(found["triton"], found["chunked"])


def from_sample(layer: sw.HyperLayer, x: Tensor, indices: Tensor) -> Tensor:
    """The pass for integer tuples sampled before, with a dense W and nothing fused."""
    shapes = layer._shapes(None)
    space = layer.layout.space(shapes)
    means, variances, values = layer.wiring()
    contexts = indices.shape[0]
    with sw.engine("chunked"):
        excluded = mark_repeats(indices, space)
    allowed = layer.layout.allowed(indices, shapes)
    if allowed is not None:
        excluded |= ~allowed
    shares = spread_reference(
        means.unflatten(0, (contexts, -1)),
        variances.unflatten(0, (contexts, -1)),
        values.unflatten(0, (contexts, -1)),
        indices,
        excluded,
        layer.density,
        layer.degrees,
    )
    rows, cols, placed = layer.layout.place(indices, shares, shapes)
    outs, ins = math.prod(shapes.outs), math.prod(shapes.ins)
    dense = x.new_zeros(outs, ins).index_put((rows, cols), placed, accumulate=True)
    y = (x.reshape(len(x), ins) @ dense.T).reshape(len(x), *shapes.outs)
    return y if layer.bias is None else y + layer.bias


@every_layer
def test_a_sampled_pass_follows_from_its_tuples(number, device):
    """Output and gradients follow from the tuples that the same generator samples."""
    layer, x = make(number, device)
    # With several wirings in a batch, the instances that have the first.
    first = len(x) // layer.wirings

    def sampled(x: Tensor) -> Tensor:
        with sw.engine("triton"):
            return layer(x, generator=torch.Generator(device).manual_seed(3))[:first]

    with sw.engine("triton"):
        indices = layer.sample(generator=torch.Generator(device).manual_seed(3)).indices
    padding = torch.zeros_like(x[first:])

    def staged(x: Tensor) -> Tensor:
        return from_sample(layer, torch.cat([x[:first], padding]), indices)[:first]

    assert_near(results(layer, x, sampled), results(layer, x, staged))


def test_the_samples_of_a_layer_are_random_and_repeat(device):
    layer, x = make(4, device)

    def run(seed: int) -> Tensor:
        with sw.engine("triton"):
            return layer(x, generator=torch.Generator(device).manual_seed(seed)).detach()

    torch.testing.assert_close(run(1), run(1))
    assert not torch.allclose(run(1), run(2))


# Contexts of one tuple, which are computed in one kernel.

GATHERS: dict[str, Callable[[], sw.HyperLayer]] = {
    "glimpses": lambda: sw.HyperLayer(
        Look((6, 7), 4, 2), (6, 7), (4,), template=sw.fan_in((4,), (6, 7))
    ),
    "student, with bias": lambda: sw.HyperLayer(
        Look((2, 9), 6, 2), (2, 9), (3, 2), template=sw.fan_in((3, 2), (2, 9)), density="student",
        bias=True, global_samples=3, region=(2, 3),
    ),
    # One row of W twice and some never; the channel is fixed, the rest learned.
    "rows in any order": lambda: sw.HyperLayer(
        Look((3, 8), 4, 1), (3, 8), (5,),
        template=torch.tensor([[4, 2, -1], [1, 0, -1], [4, 1, -1], [0, 2, -1]]), context=1,
    ),
    "the last column fixed": lambda: sw.HyperLayer(
        Look((8, 3), 4, 1), (8, 3), (4,),
        template=torch.tensor([[0, -1, 1], [1, -1, 0], [2, -1, 2], [3, -1, 2]]),
    ),
    "two tuples for each output": lambda: sw.HyperLayer(
        Look((9,), 6, 1), (9,), (3,), template=sw.fan_in((3,), (9,), 2), context=1
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "batch"), [(n, (2, 2) if i % 2 else (3,)) for i, n in enumerate(GATHERS)]
)
def test_the_fused_pass_equals_the_staged_pass(name, batch, device, monkeypatch):
    torch.manual_seed(0)
    layer = GATHERS[name]().double().to(device)
    if layer.bias is not None:
        torch.nn.init.normal_(layer.bias)
    shape = (*batch, *cast(Any, layer.in_shape))
    x = torch.randn(shape, dtype=torch.float64, generator=seeded(0)).to(device)
    calls = []
    fused_gather = apply.fused_gather
    monkeypatch.setattr(apply, "fused_gather", lambda *a: calls.append("fused") or fused_gather(*a))

    def run(x: Tensor) -> Tensor:
        with sw.engine("triton"):
            return layer(x, generator=torch.Generator(device).manual_seed(3))

    fused = results(layer, x, run)
    monkeypatch.setattr(apply, "kernel_gathers", lambda *_: False)
    staged = results(layer, x, run)
    assert calls == ["fused"], "not one pass of each kind"
    assert_near(fused, staged)


@pytest.mark.parametrize("mode", ["rounded", "expected"])
def test_other_modes_read_nothing_at_random(mode, device):
    torch.manual_seed(0)
    layer = GATHERS["glimpses"]().double().to(device)
    x = torch.randn(3, 6, 7, dtype=torch.float64, generator=seeded(0)).to(device)
    found = {}
    for engine in ("triton", "chunked"):
        with sw.engine(engine):
            found[engine] = results(layer, x, lambda x: layer(x, mode=mode))
    assert_near(found["triton"], found["chunked"])


EMPTY: dict[str, Callable[[], sw.HyperLayer]] = {
    "one wiring": lambda: sw.SparseLayer((5,), (4,), tuples=6),
    "fused gather": lambda: sw.HyperLayer(
        Look((5,), 4, 1), (5,), (4,), template=sw.fan_in((4,), (5,))
    ),
    "one wiring each": lambda: sw.HyperLayer(Look((5,), 3, 2), (5,), (4,)),
}


@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_batch(name, device):
    layer = EMPTY[name]().to(device)
    with sw.engine("triton"):
        y = layer(torch.zeros(0, 5, device=device))
        y.sum().backward()
    assert y.shape == (0, 4)
    for parameter in layer.parameters():
        assert parameter.grad is not None
        assert (parameter.grad == 0).all()
