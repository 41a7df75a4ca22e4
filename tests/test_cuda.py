"""The core on a GPU: the same numbers, no wait for the device, safe to capture in a graph."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.gpu import MARKS, never_waits
from tests.helpers import output_and_gradients
from tests.nn.dense import KINDS, input_for
from torch import Tensor

import sparsewire as sw
from sparsewire import ops, sorting

pytestmark = MARKS


def close(name: str, ours: Tensor, true: Tensor, tolerance: float = 1e-5) -> None:
    error = (ours.detach().cpu().double() - true.detach()).norm() / true.detach().norm()
    assert error < tolerance, f"{name}: relative error {error:.1e}"


def assert_agrees(
    function: Callable[..., Tensor],
    leaves: dict[str, Tensor],
    engine: Any = "auto",
    tolerance: float = 1e-5,
    **fixed: Any,
) -> None:
    """Output and gradients on the GPU in float32, against the specification in float64."""
    there = {name: t.cuda() if isinstance(t, Tensor) else t for name, t in fixed.items()}

    def on_gpu(**tensors: Tensor) -> Tensor:
        moved = {name: tensor.float().cuda() for name, tensor in tensors.items()}
        return function(**moved, **there).cpu()

    with sw.engine("reference"):
        want = output_and_gradients(lambda **tensors: function(**tensors, **fixed), leaves)
    with sw.engine(engine):
        got = output_and_gradients(on_gpu, leaves)
    for name, true in want.items():
        close(name, got[name], true, tolerance)


@pytest.mark.parametrize("engine", ["auto", "chunked", "reference"])
@pytest.mark.parametrize("density", ["gaussian", "student"])
def test_spread_agrees_with_float64(engine, density) -> None:
    k, m, r = 63, 301, 3
    leaves = {
        "means": torch.rand(2, k, r).double() * 20,
        "variances": torch.rand(2, k, r).double() + 0.2,
        "values": torch.randn(2, k).double(),
    }
    indices = torch.randint(21, (2, m, r))
    fixed = {"indices": indices, "excluded": ops.mark_repeats(indices, (21,) * r)}
    assert_agrees(ops.spread, leaves, engine, 1e-4, **fixed, density=density)


@pytest.mark.parametrize("engine", ["auto", "chunked", "reference"])
def test_contract_agrees_with_float64(engine) -> None:
    leaves = {"values": torch.randn(3, 500).double(), "x": torch.randn(3, 5, 13, 7).double()}
    indices = torch.randint(13, (3, 500, 3))
    assert_agrees(ops.contract, leaves, engine, indices=indices, out_shape=(13, 13), features=1)


def test_samples_repeat_and_are_valid() -> None:
    means = torch.rand(4, 10, 3, device="cuda") * 30
    samples = [
        ops.sample(means, (31, 31, 31), (5, 5, 5), 3, 4, torch.Generator("cuda").manual_seed(seed))
        for seed in (0, 0, 1)
    ]
    assert torch.equal(samples[0], samples[1])
    assert not torch.equal(samples[0], samples[2])
    assert samples[0].min() >= 0
    assert samples[0].max() <= 30
    repeats = [ops.mark_repeats(each, (31, 31, 31)) for each in (samples[0], samples[0].cpu())]
    assert torch.equal(repeats[0].cpu(), repeats[1])


@pytest.mark.parametrize("kind", KINDS)
def test_layer_agrees_with_cpu_and_never_waits(kind: str) -> None:
    layer = KINDS[kind](bias=True, wirings=3 if kind == "contexts" else 1)
    x = input_for(layer, 6)
    true = {mode: layer(x, mode=mode) for mode in ("rounded", "expected")}
    layer, x = layer.cuda(), x.cuda()
    for mode, exact in true.items():
        close(mode, layer(x, mode=mode), exact.double())
    layer(x).sum().backward()  # copies the sizes to the device
    with never_waits():
        layer(x).square().mean().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    assert layer.freeze().values.device.type == "cuda"


def test_bad_parameters_give_nan_and_devices_that_differ_are_refused() -> None:
    layer = sw.SparseLayer((16,), (16,), tuples=16).cuda()
    with pytest.raises(ValueError, match=r"x, layer must be on one device; got x on cpu"):
        layer(torch.randn(4, 16))
    with torch.no_grad():
        layer.source.raw_means[3] = float("nan")
    assert layer(torch.randn(4, 16, device="cuda")).isnan().any()
    torch.cuda.synchronize()


def test_autocast_keeps_proportions_in_float32() -> None:
    layer = sw.SparseLayer((16,), (16,), tuples=16).cuda()
    x = torch.randn(4, 16, device="cuda")
    plain = layer(x, generator=torch.Generator("cuda").manual_seed(0))
    with torch.autocast("cuda", dtype=torch.bfloat16):
        cast = layer(x, generator=torch.Generator("cuda").manual_seed(0))
        half = layer(x.bfloat16(), generator=torch.Generator("cuda").manual_seed(0))
    assert torch.allclose(plain, cast, rtol=1e-5, atol=1e-6)
    assert half.dtype == torch.bfloat16


@pytest.mark.parametrize("options", [{}, {"bend": 0.5}, {"reach": 1}, {"reach": 3}], ids=str)
def test_the_likelihood_of_an_order_of_many_agrees_with_float64(options) -> None:
    """More than a kernel takes; some of them equal."""
    leaves, target = {"keys": torch.randn(5, 200).double()}, torch.randint(100, (5, 200))
    assert_agrees(sorting.order_loss, leaves, target=target, reduction="none", **options)


@pytest.mark.parametrize("reach", [None, 1])
def test_the_likelihood_of_an_order_of_many_can_be_captured(reach) -> None:
    keys = torch.randn(2, 150, device="cuda", requires_grad=True)
    target = torch.rand(2, 150, device="cuda")

    def step(target: torch.Tensor) -> torch.Tensor:
        loss = sorting.order_loss(keys, target, reach=reach)
        (slopes,) = torch.autograd.grad(loss, keys)
        return slopes

    captured = sw.capture(step)
    slopes = [captured(target) for _ in range(captured.warmup + 2)][-1]
    assert captured.captured
    close("slopes", slopes, step(target).cpu().double())


@pytest.mark.parametrize("n", [16, 100, 1024, 1025])
@pytest.mark.parametrize("function", [sw.soft_sort, sw.soft_rank])
def test_soft_sorts_agree_with_float64_and_can_be_captured(function, n) -> None:
    """Short rows have one kernel, long ones several."""
    keys = torch.randn(5, n)
    given = keys.cuda().requires_grad_()
    weight = torch.randn(5, n)

    def step(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        soft = function(given)
        (slopes,) = torch.autograd.grad((soft * weight).sum(), given)
        return soft.detach(), slopes

    exact = keys.double().requires_grad_()
    true = function(exact)
    (slopes,) = torch.autograd.grad((true * weight).sum(), exact)
    there = weight.cuda()
    captured = sw.capture(step)
    results = [captured(there) for _ in range(captured.warmup + 2)]
    assert captured.captured
    for mine in (step(there), results[-1]):
        close("values", mine[0], true.detach())
        # Neighbours are as near as their numbers are exact, the nearer the more of them there are.
        close("slopes", mine[1], slopes, tolerance=1e-4)
