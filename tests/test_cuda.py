"""The core on a GPU: the same numbers, no wait for the device, safe to capture in a graph."""

import pytest
import torch
from tests.gpu import MARKS, never_waits

import sparsewire as sw
from sparsewire import ops, sorting

pytestmark = MARKS


def close(name: str, ours: torch.Tensor, true: torch.Tensor, tolerance: float = 1e-5) -> None:
    error = (ours.detach().cpu().double() - true.detach()).norm() / true.detach().norm()
    assert error < tolerance, f"{name}: relative error {error:.1e}"


@pytest.mark.parametrize("engine", ["auto", "chunked", "reference"])
@pytest.mark.parametrize("density", ["gaussian", "student"])
def test_spread_agrees_with_float64(engine, density) -> None:
    k, m, r = 63, 301, 3
    means = torch.rand(2, k, r, dtype=torch.double) * 20
    variances, values = torch.rand(2, k, r).double() + 0.2, torch.randn(2, k).double()
    indices = torch.randint(21, (2, m, r))
    excluded = ops.mark_repeats(indices, (21,) * r)
    weight = torch.randn(2, m).double()

    def run(call, tensors, where):
        tensors = [t.detach().requires_grad_() for t in tensors]
        out = call(*tensors, indices.to(where), excluded.to(where), density)
        return out, *torch.autograd.grad(out, tensors, weight.to(out))

    true = run(ops.spread_reference, (means, variances, values), "cpu")
    moved = [t.float().cuda() for t in (means, variances, values)]
    with sw.engine(engine):
        ours = run(ops.spread, moved, "cuda")
    for name, mine, exact in zip(("out", "means", "variances", "values"), ours, true, strict=True):
        close(name, mine, exact, 1e-4)


def test_contract_agrees_with_float64() -> None:
    indices = torch.randint(13, (3, 500, 3))
    values, x = torch.randn(3, 500).double(), torch.randn(3, 5, 13, 7).double()
    out = ops.contract_reference(indices, values, x, (13, 13), features=1)
    ours = ops.contract(
        indices.cuda(), values.float().cuda(), x.float().cuda(), (13, 13), features=1
    )
    close("y", ours, out)


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
    assert torch.equal(
        ops.mark_repeats(samples[0], (31, 31, 31)).cpu(),
        ops.mark_repeats(samples[0].cpu(), (31, 31, 31)),
    )


LAYERS = {
    "free": lambda: sw.SparseLayer((40,), (30,), tuples=50, bias=True),
    "contexts": lambda: sw.SparseLayer(
        (40,), (30,), tuples=50, context=5, wirings=3, density="student"
    ),
    "template": lambda: sw.SparseLayer(
        (4, 10), (30,), template=sw.fan_in((30,), (4, 10), 2), share_values=[0] * 60
    ),
    "lower": lambda: sw.HyperLayer(sw.LowerTriangular(20), (40,), (30,)),
    "banded": lambda: sw.HyperLayer(sw.Banded(2, 1, 20), (40,), (30,)),
    "blocks": lambda: sw.HyperLayer(sw.BlockDiagonal(5, 8), (40,), (30,)),
    "convolution": lambda: sw.HyperLayer(sw.Convolution((3,), 8), (4, 10), (3, 10)),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_layer_agrees_with_cpu_and_never_waits(kind: str) -> None:
    layer = LAYERS[kind]()
    x = torch.randn(6, *(size or 1 for size in layer.in_shape))
    modes = ("rounded", "expected")
    true = [layer(x, mode=mode) for mode in modes]  # pyright: ignore[reportArgumentType]
    layer, x = layer.cuda(), x.cuda()
    for mode, exact in zip(modes, true, strict=True):
        close(mode, layer(x, mode=mode), exact.double())  # pyright: ignore[reportArgumentType]
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
    keys, target = torch.randn(5, 200).double(), torch.randint(100, (5, 200))

    def run(keys, where):
        leaf = keys.to(where).requires_grad_()
        losses = sorting.order_loss(leaf, target.to(where), reduction="none", **options)
        return losses, *torch.autograd.grad(losses.sum(), leaf)

    with sw.engine("reference"):
        true = run(keys, "cpu")
    for name, mine, exact in zip(("losses", "keys"), run(keys.float(), "cuda"), true, strict=True):
        close(name, mine, exact)


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
