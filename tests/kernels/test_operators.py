"""The kernels as operators of `torch.library`: tracing, compiling, autocast and autograd."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.helpers import seeded
from tests.kernels.compare import random_tuples
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map_only

import sparsewire as sw
from sparsewire import kernels
from sparsewire.ops.contract._triton import operators as contract_operators
from sparsewire.ops.fused_gather._triton import operators as gather_operators
from sparsewire.ops.repeats import _triton as repeats_operators
from sparsewire.ops.sample import _triton as sample_operators
from sparsewire.ops.spread._triton import launch as spreading
from sparsewire.ops.spread._triton import operators as spread_operators
from sparsewire.sorting.halves._triton import operators as halves_library
from sparsewire.sorting.order_loss._triton import operators as likelihood_library
from sparsewire.sorting.soft_sort import _operator as soft_calls
from sparsewire.sorting.soft_sort._triton import operators as soft_operators
from sparsewire_lab.kernels._triton import operators as image_operators

TUPLES = 3


def tuples(*shape: int, device: str) -> list[Tensor]:
    """Means, variances and values that require grad; means have this shape."""
    generator = seeded(0)
    means, variances = torch.rand(2, *shape, generator=generator)
    values = torch.randn(shape[:-1], generator=generator)
    made = means * 4, variances + 0.5, values
    return [tensor.to(device).requires_grad_() for tensor in made]


def leaf(*shape: int, device: str) -> Tensor:
    return torch.randn(shape, generator=seeded(1)).to(device).requires_grad_()


def spread_inputs(device: str, repeats: bool = True) -> list[Any]:
    indices = random_tuples((2,), 5, (5, 5)).to(device)
    excluded = torch.tensor([[0, 0, 1, 0, 0], [0, 1, 0, 0, 1]], device=device).bool()
    options = "gaussian", 1.0, 1e-7
    return [*tuples(2, TUPLES, 2, device=device), indices, excluded if repeats else None, *options]


def spread_backward_inputs(device: str) -> list[Any]:
    inputs = spread_inputs(device)
    left = [t.detach() for t in spread_operators.spread(*inputs)[1:]]
    return [leaf(2, 5, device=device), *inputs[:5], *left, *inputs[5:]]


def contract_inputs(device: str) -> list[Any]:
    rows, cols = random_tuples((2,), 6, (4, 5)).to(device).unbind(-1)
    return [rows, cols, leaf(2, 6, device=device), leaf(2, 5, 3, device=device), 4]


def dot_inputs(device: str) -> list[Any]:
    rows, cols, _, x, _ = contract_inputs(device)
    return [rows, cols, leaf(2, 4, 3, device=device), x]


def sample_inputs(device: str) -> list[Any]:
    means = torch.rand(4, 2, generator=seeded(0)).to(device) * 8
    return [means, torch.tensor([123], device=device), (9, 8), (3, 2), 2, 2]


def mark_repeats_inputs(device: str) -> list[Any]:
    return [random_tuples((2,), 7, (3, 3)).to(device), (3, 3)]


def gather_inputs(device: str) -> list[Any]:
    x, base = leaf(2, 72, device=device), torch.zeros(TUPLES, dtype=torch.int64, device=device)
    seed = torch.tensor([123], device=device)
    options = (8, 1), (9, 8), (3, 2), 2, 2, "gaussian", 1.0
    return [*tuples(2, TUPLES, 2, device=device), x, base, seed, *options]


def gather_backward_inputs(device: str, to_input: bool) -> list[Any]:
    inputs = gather_inputs(device)
    left = [t.detach() for t in gather_operators.fused_gather(*inputs)[1:]]
    return [leaf(2, TUPLES, device=device), *inputs[:6], *left, *inputs[6:], to_input]


def thin_conv_inputs(device: str, relu: bool) -> list[Any]:
    x = torch.randn(2, 2, 4, 5, generator=seeded(0)).to(device)
    bias = leaf(16, device=device) if relu else None
    return [x, leaf(16, 2, 3, 3, device=device), bias, 1 if relu else 0, relu, torch.float32]


def pool_relu_inputs(device: str, size: int) -> list[Any]:
    x = torch.randn(2, 3, 5, 4, generator=seeded(0)).to(device)
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    return [x, leaf(3, device=device), size]


def narrow_conv_inputs(device: str, relu: bool) -> list[Any]:
    x = torch.randn(2, 16, 3, 4, generator=seeded(0)).to(device)
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    bias = leaf(16, device=device) if relu else None
    return [x, leaf(16, 16, 3, 3, device=device), bias, relu]


def norm_pool_inputs(device: str) -> list[Any]:
    x, _, size = pool_relu_inputs(device, 2)
    return [x, leaf(3, device=device), leaf(3, device=device), 1e-5, size]


def soft_rows_inputs(device: str, features: int | None, ranks: bool = False) -> list[Any]:
    payload = None if features is None else leaf(2, 6, features, device=device)
    weights = None if features == 3 else torch.ones(2, 6, device=device)
    heat = torch.tensor([[0.3], [2.0]], device=device)
    return [leaf(2, 6, device=device), payload, weights, heat, False, ranks]


def soft_rows_backward_inputs(device: str, *options: Any) -> list[Any]:
    inputs = soft_rows_inputs(device, *options)
    out, *saved = (t.detach() for t in soft_operators.soft_rows(*inputs))
    return [torch.ones_like(out).requires_grad_(), *inputs[:4], *saved, *inputs[4:]]


def soft_call_inputs(_: str, operation: str = "mix", backward: bool = False) -> list[Any]:
    """Of the operator that computes in NumPy, on the CPU alone."""
    payload = None if operation == "rank" else leaf(2, 6, 3, device="cpu")
    heat = torch.tensor([[0.3], [2.0]]).requires_grad_()
    inputs = [leaf(2, 6, device="cpu"), payload, None, heat, None, operation]
    if not backward:
        return inputs
    plain = tree_map_only(Tensor, torch.Tensor.detach, inputs)
    return [torch.ones(2, 6) if payload is None else torch.ones(2, 6, 3), *plain]


def half_inputs(device: str) -> list[Any]:
    return [leaf(3, 5, device=device), 2]


def half_backward_inputs(device: str) -> list[Any]:
    odds, lower = half_inputs(device)
    matrix = halves_library.half(odds, lower).detach()
    return [leaf(3, 5, 5, device=device), matrix, odds, lower]


def order_cuts_inputs(device: str, bend: float) -> list[Any]:
    groups = torch.tensor([[0, 1, 1, 2, 3], [0, 0, 1, 2, 2]], dtype=torch.int32, device=device)
    lengths = torch.tensor([5, 3], dtype=torch.int32, device=device)
    return [leaf(2, 5, device=device), groups, lengths, bend]


OPERATORS: dict[str, tuple[Any, Callable[[str], list[Any]]]] = {
    "spread": (spread_operators.spread, spread_inputs),
    "spread, none excluded": (spread_operators.spread, lambda device: spread_inputs(device, False)),
    "spread_backward": (spread_operators.spread_backward, spread_backward_inputs),
    "contract": (contract_operators.contract, contract_inputs),
    "dot": (contract_operators.dot, dot_inputs),
    "sample": (sample_operators.sample, sample_inputs),
    "mark_repeats": (repeats_operators.mark_repeats, mark_repeats_inputs),
    "fused_gather": (gather_operators.fused_gather, gather_inputs),
    "fused_gather_backward": (
        gather_operators.fused_gather_backward,
        lambda device: gather_backward_inputs(device, True),
    ),
    "fused_gather_backward, not to x": (
        gather_operators.fused_gather_backward,
        lambda device: gather_backward_inputs(device, False),
    ),
    "thin_conv": (image_operators.thin_conv, lambda device: thin_conv_inputs(device, True)),
    "thin_conv, no bias": (image_operators.thin_conv, lambda d: thin_conv_inputs(d, False)),
    "pool_relu": (image_operators.pool_relu, lambda device: pool_relu_inputs(device, 2)),
    "pool_relu, every pixel": (image_operators.pool_relu, lambda d: pool_relu_inputs(d, 1)),
    "narrow_conv": (image_operators.narrow_conv, lambda device: narrow_conv_inputs(device, True)),
    "narrow_conv, no bias": (image_operators.narrow_conv, lambda d: narrow_conv_inputs(d, False)),
    "norm_pool": (image_operators.norm_pool, norm_pool_inputs),
    **{
        f"soft_rows, {options}": (
            soft_operators.soft_rows,
            lambda device, options=options: soft_rows_inputs(device, *options),
        )
        for options in ((None,), (3,))
    },
    **{
        f"soft_rows_backward, {options}": (
            soft_operators.soft_rows_backward,
            lambda device, options=options: soft_rows_backward_inputs(device, *options),
        )
        for options in ((None, True), (1,), (3,))
    },
    "soft_call": (soft_calls.soft_call, soft_call_inputs),
    "soft_call, ranks": (soft_calls.soft_call, lambda d: soft_call_inputs(d, "rank")),
    "soft_call_backward": (
        soft_calls.soft_call_backward,
        lambda d: soft_call_inputs(d, backward=True),
    ),
    "soft_call_backward, ranks": (
        soft_calls.soft_call_backward,
        lambda d: soft_call_inputs(d, "rank", backward=True),
    ),
    "half": (halves_library.half, half_inputs),
    "half_backward": (halves_library.half_backward, half_backward_inputs),
    "order_cuts": (likelihood_library.order_cuts, lambda d: order_cuts_inputs(d, float("inf"))),
    "order_cuts, bent": (likelihood_library.order_cuts, lambda d: order_cuts_inputs(d, 0.5)),
}

operators = pytest.mark.parametrize("name", OPERATORS)


def test_every_operator_is_checked():
    names = set(kernels._library._op_defs)  # pyright: ignore[reportAttributeAccessIssue]
    assert {op.name().removesuffix(".default") for op, _ in OPERATORS.values()} == names


@pytest.mark.usefixtures("unchecked")  # symbolic sizes are no integers
@operators
def test_operators_pass_opcheck(name, device):
    """Schema, registration of gradients, fake tensors, tracing with symbolic sizes."""
    operator, inputs = OPERATORS[name]
    torch.library.opcheck(operator, tuple(inputs(device)))


def described(outputs: Any) -> list[tuple[Any, ...]]:
    return [
        (tuple(t.shape), t.stride() if t.numel() else None, t.dtype, t.device.type)
        for t in tree_leaves(outputs)
    ]


@pytest.mark.parametrize("near", [False, True])
@operators
def test_fake_outputs_have_the_layout_of_real_ones(name, near, device, monkeypatch):
    """In near mode too, which saves more for the backward pass."""
    if near:
        monkeypatch.setattr(spreading, "NEAR_PAIRS", 1)
    operator, make = OPERATORS[name]
    inputs = tree_map_only(Tensor, torch.Tensor.detach, make(device))
    with FakeTensorMode() as mode:
        fake = operator(*tree_map_only(Tensor, mode.from_tensor, inputs))
    assert described(fake) == described(operator(*inputs))


# `torch.compile`, in processes of their own: the checks of annotations cannot be compiled.

START = """
import math, os, sys
import torch
from torch import nn
import sparsewire as sw
from torch._dynamo.utils import counters

interpreted = os.environ.get("TRITON_INTERPRET") == "1"
device, backend = ("cpu", "aot_eager") if interpreted else ("cuda", "inductor")
torch.backends.cudnn.allow_tf32 = False
torch._inductor.config.fallback_random = True  # draw the seeds that are drawn without compiling

class Look(nn.Module):
    def __init__(self, size, tuples, rank):
        super().__init__()
        self.net, self.sizes = nn.Linear(size, tuples * (rank + 2)), (tuples, rank + 2)

    def forward(self, x):
        return self.net(x.flatten(1)).unflatten(-1, self.sizes)

def check(layer, modes, batches=(2, 3, 5)):
    layer = layer.to(device)
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    for batch in batches:
        x = torch.randn(batch, *layer.in_shape, device=device)
        for mode in modes:
            results = []
            for each in (layer, compiled):
                torch.manual_seed(1)
                with sw.engine("triton"):
                    y = each(x, mode=mode)
                    y.square().sum().backward()
                results.append([y, *(p.grad for p in layer.parameters())])
                layer.zero_grad()
            for got, want in zip(*results, strict=True):
                assert want.abs().sum() > 0
                torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    # For the first batch, and once more for batches of any size.
    assert counters["stats"]["unique_graphs"] <= 2 * len(modes), counters["stats"]
    assert not counters["graph_break"]
"""

CASES = {
    "one wiring": "check(sw.SparseLayer((5,), (4,), tuples=6), ('sampled', 'expected'))",
    "one wiring each": "check(sw.HyperLayer(Look(5, 3, 2), (5,), (4,)), ('sampled',))",
    "fused gather": """
template = sw.fan_in((4,), (3, 4))
check(sw.HyperLayer(Look(12, 4, 2), (3, 4), (4,), template=template), ("sampled",))
""",
    "images": """
from sparsewire_lab.attention.convnet import FusedPair

class Pair(FusedPair):
    in_shape = 1, 9, 8

    def forward(self, x, mode):
        return super().forward(x)

check(Pair(1, 16, pool=2), (None,))
""",
}


@pytest.mark.parametrize("case", CASES)
def test_layers_compile_without_graph_breaks(case):
    script = START + CASES[case]
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]


# Autocast.


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the operators know autocast on CUDA")
@pytest.mark.parametrize("name", ["spread", "contract", "fused_gather"])
def test_autocast_computes_in_float32(name, device):
    operator, make = OPERATORS[name]
    inputs = tree_map_only(Tensor, torch.Tensor.detach, make(device))

    def halved(tensor: Tensor) -> Tensor:
        return tensor.bfloat16() if tensor.is_floating_point() else tensor

    halves = tree_map_only(Tensor, halved, inputs)
    rounded = tree_map_only(Tensor, lambda t: t.float() if t.is_floating_point() else t, halves)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        got = tree_leaves(operator(*halves))[0]
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, tree_leaves(operator(*rounded))[0])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the operators know autocast on CUDA")
def test_layers_under_autocast(device):
    layer = sw.SparseLayer((16,), (16,), tuples=16).to(device)
    x = torch.randn(4, 16, device=device)

    def run(inputs: Tensor) -> Tensor:
        return layer(inputs, generator=torch.Generator(device).manual_seed(0))

    plain = run(x)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        torch.testing.assert_close(run(x), plain, rtol=1e-5, atol=1e-6)
        assert run(x.bfloat16()).dtype == torch.bfloat16
