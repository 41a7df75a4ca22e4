"""Layers on the kernels: the numbers of plain PyTorch, for the same sampled tuples."""

import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from tests.helpers import pairs, seeded
from tests.kernels.compare import assert_near, note_calls
from torch import Tensor, nn

import sparsewire as sw
from sparsewire.nn import apply

sampling = importlib.import_module("sparsewire.ops.sample")


class Look(nn.Module):
    """A source that reads the input: raw numbers (*b, k, r + 2) for each instance."""

    def __init__(self, in_shape: Sequence[int], tuples: int, rank: int) -> None:
        super().__init__()
        self.dims, self.sizes = len(in_shape), (tuples, rank + 2)
        self.net = nn.Linear(math.prod(in_shape), math.prod(self.sizes))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x.flatten(-self.dims)).unflatten(-1, self.sizes)


LAYERS: dict[str, Callable[[], sw.HyperLayer]] = {
    "bias": lambda: sw.SparseLayer((40,), (30,), tuples=50, bias=True),
    "three wirings": lambda: sw.SparseLayer(
        (40,), (30,), tuples=50, context=5, wirings=3, kernel="student"
    ),
    "shared values": lambda: sw.SparseLayer(
        (4, 10), (30,), template=sw.fan_in((30,), (4, 10), 2), share_values=[0] * 60
    ),
    "triangular": lambda: sw.HyperLayer(sw.LowerTriangular(20), (40,), (30,)),
    "banded": lambda: sw.HyperLayer(sw.Banded(2, 1, 20), (40,), (30,)),
    "diagonal blocks": lambda: sw.HyperLayer(sw.BlockDiagonal(5, 8), (40,), (30,)),
    "convolution": lambda: sw.HyperLayer(sw.Convolution((3,), 8), (4, 10), (3, 10)),
}
# Contexts of one tuple, which are computed in one kernel.
GATHERS: dict[str, Callable[[], sw.HyperLayer]] = {
    "glimpses": lambda: sw.HyperLayer(
        Look((6, 7), 4, 2), (6, 7), (4,), template=sw.fan_in((4,), (6, 7))
    ),
    "student, with bias": lambda: sw.HyperLayer(
        Look((2, 9), 6, 2), (2, 9), (3, 2), template=sw.fan_in((3, 2), (2, 9)), kernel="student",
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


def results(layer: sw.HyperLayer, x: Tensor, **options: Any) -> dict[str, Tensor]:
    """Output of a pass, and the gradients of input and parameters, by name, on the CPU."""
    x = x.detach().requires_grad_()
    y = layer(x, **options)
    weights = torch.randn(y.shape, dtype=torch.float64, generator=seeded(1)).to(y)
    names, parameters = zip(*layer.named_parameters(), strict=True)
    found = torch.autograd.grad(y, (x, *parameters), weights, allow_unused=True)
    named = zip(("y", "x", *names), (y.detach(), *found), strict=True)
    return {name: tensor.cpu() for name, tensor in named if tensor is not None}


@pairs(
    name=[*LAYERS, *GATHERS],
    mode=["sampled", "rounded", "expected"],
    batch=[(6,), (3, 2), (0,)],
)
def test_layers_agree_with_plain_pytorch(name, mode, batch, device, monkeypatch):
    torch.manual_seed(0)
    layer = (LAYERS | GATHERS)[name]().double().to(device)
    if layer.bias is not None:
        nn.init.normal_(layer.bias)
    shape = (*batch, *cast(Any, layer.in_shape))
    x = torch.randn(shape, dtype=torch.float64, generator=seeded(7)).to(device)
    # Plain PyTorch gets the tuples that the kernel samples.
    monkeypatch.setattr(sampling, "dispatch", lambda engines, _, *call: engines[0].run(*call))
    called = note_calls(monkeypatch, apply, "fused_gather")
    found = []
    for engine in ("triton", "chunked"):
        generator = torch.Generator(device).manual_seed(3)
        with sw.engine(engine):
            found.append(results(layer, x, mode=mode, generator=generator))
    assert called == (["fused_gather"] if name in GATHERS and mode == "sampled" else [])
    if mode != "rounded":
        assert found[0].keys() >= {name for name, _ in layer.named_parameters()}
    assert_near(*found)
