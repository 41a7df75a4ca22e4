"""The kernels of `contract` against the dense contraction in float64, and against a loop."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.helpers import seeded, seeds, sizes_kept
from tests.kernels.compare import assert_near, by_kernels, exactly, random_tuples
from torch import Tensor

import sparsewire as sw
from sparsewire.ops import contract, contract_flat, contract_reference
from sparsewire.ops.contract._triton import kernels as contraction
from sparsewire.ops.contract._triton import operators as library


def case(
    surroundings: tuple[tuple[int, ...], ...], m: int = 37, outs: int = 5, ins: int = 7
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Values and input in float64; index tuples, repeats among them."""
    wirings, batch, features = surroundings
    values = torch.randn(*wirings, m, dtype=torch.float64, generator=seeded(2))
    x_shape = (*wirings, *batch, ins, *features)
    x = torch.randn(x_shape, dtype=torch.float64, generator=seeded(3))
    indices = random_tuples(wirings, m, (outs, ins))
    return {"values": values, "x": x}, {
        "indices": indices,
        "out_shape": (outs,),
        "features": len(features),
    }


def compare(leaves: dict[str, Tensor], device: str, **fixed: Any) -> None:
    got = by_kernels(contract, leaves, device, **fixed)
    assert_near(got, exactly(contract_reference, leaves, **fixed))


@pytest.mark.parametrize(
    ("lanes", "where"),
    [(1, "batch"), (2, "features"), (3, "batch"), (63, "features"), (64, "batch"),
     (65, "features"), (65, "batch"), (130, "features"), (130, "batch")],
)  # fmt: skip
def test_any_number_of_lanes(lanes, where, device):
    """In the batch they lie far apart, in the features side by side."""
    inside = ((2,), (lanes,), ()) if where == "batch" else ((2,), (), (lanes,))
    leaves, fixed = case(inside, m=23)
    compare(leaves, device, **fixed)


@pytest.mark.parametrize("m", [1, 15, 16, 17, 1023, 1025])
def test_any_number_of_tuples(m, device):
    leaves, fixed = case(((), (), ()), m=m, outs=11)
    compare(leaves, device, **fixed)
    leaves, fixed = case(((2,), (64,), ()), m=m % 1000, outs=11)
    compare(leaves, device, **fixed)


def test_several_axes_in_and_out(device):
    indices = random_tuples((2,), 50, (2, 3, 4, 5))
    values = torch.randn(2, 50, dtype=torch.float64, generator=seeded(0))
    x = torch.randn(2, 3, 4, 5, 2, dtype=torch.float64, generator=seeded(1))
    leaves = {"values": values, "x": x}
    compare(leaves, device, indices=indices, out_shape=(2, 3), features=1)


@pytest.mark.parametrize("small", [2**18, -1], ids=["in a cache", "lanes innermost"])
@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.transpose(0, 2).contiguous().transpose(0, 2),
        lambda x: x.flip(1).transpose(1, 2).contiguous().transpose(1, 2),
        lambda x: x[:1].expand(3, 4, 7),
        lambda x: x[..., :1].expand(3, 4, 7),
        lambda x: torch.stack([x, -x], -1)[..., 1],
    ],
    ids=["transposed", "flipped", "one instance for all", "one place for all", "strided"],
)
def test_any_strides(change, small, device, monkeypatch):
    """Of the input, and of rows, columns and values that lie beside each other."""
    monkeypatch.setattr(contraction, "_SMALL", small)
    leaves, fixed = case(((3,), (4,), ()), m=20)
    rows_and_cols = fixed["indices"].unbind(-1)
    assert not rows_and_cols[0].is_contiguous()

    def strided(values: Tensor, x: Tensor, **_: Any) -> Tensor:
        rows, cols = (t.to(x.device) for t in rows_and_cols)
        beside = torch.stack([values, values], -1)[..., 0]
        return contract_flat(rows, cols, beside, change(x), 5)

    def dense(values: Tensor, x: Tensor, **_: Any) -> Tensor:
        return contract_reference(fixed["indices"], values, change(x), (5,))

    got = by_kernels(strided, leaves, device)
    assert_near(got, exactly(dense, leaves))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_inputs_are_summed_in_float32(dtype, device):
    leaves, fixed = case(((2,), (3,), ()), m=300)
    leaves = {"values": leaves["values"].float(), "x": leaves["x"].to(dtype)}
    got = by_kernels(contract, leaves, device, **fixed)
    assert got["output"].dtype == got["gradient of x"].dtype == dtype
    want = exactly(contract_reference, leaves, **fixed)
    # The weights of the gradient are rounded to the dtype of the output as well.
    rounding = torch.finfo(dtype).eps
    assert_near(got, want, rounding)
    # Summed in half precision it would be off by many such roundings, not by this one alone.
    error, exact = (got["output"] - want["output"]).abs(), want["output"].abs()
    assert (error <= 0.51 * rounding * exact + 1e-5).all()


def test_the_wider_of_values_and_input_decides(device):
    leaves, fixed = case(((), (3,), ()))
    leaves = {"values": leaves["values"], "x": leaves["x"].float()}
    got = by_kernels(contract, leaves, device, **fixed)
    assert got["gradient of values"].dtype == torch.float64
    assert got["output"].dtype == torch.float32
    assert_near(got, exactly(contract_reference, leaves, **fixed), 1e-6)


@pytest.mark.parametrize(
    ("surroundings", "m"),
    [
        (((), (3,), ()), 0),
        (((2,), (0,), ()), 4),
        (((), (3,), (0,)), 4),
        (((0,), (3,), ()), 4),
    ],
    ids=str,
)
def test_nothing_to_contract(surroundings, m, device):
    leaves, fixed = case(surroundings, m)
    compare(leaves, device, **fixed)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    wirings=st.integers(1, 3),
    lanes=st.integers(1, 9),
    sizes=st.tuples(st.integers(1, 40), st.integers(1, 9), st.integers(1, 9)),
    seed=seeds,
)
def test_any_shape_equals_a_loop(wirings, lanes, sizes, seed, device):
    m, outs, ins = sizes
    rows, cols = random_tuples((wirings,), m, (outs, ins), seed).unbind(-1)
    values = torch.randn(wirings, m, dtype=torch.float64, generator=seeded(seed))
    x = torch.randn(wirings, ins, lanes, dtype=torch.float64, generator=seeded(seed + 1))
    y = torch.zeros(wirings, outs, lanes, dtype=torch.float64)
    for w in range(wirings):
        for row, col, value in zip(rows[w].tolist(), cols[w].tolist(), values[w], strict=True):
            y[w, row] += value * x[w, col]
    tensors = [t.to(device) for t in (rows, cols, values, x)]
    torch.testing.assert_close(library.contract(*tensors, outs).cpu(), y)
    dots = [[float(y[w, rows[w, j]] @ x[w, cols[w, j]]) for j in range(m)] for w in range(wirings)]
    tensors[2] = y.to(device)
    got = library.dot(*tensors).cpu()
    torch.testing.assert_close(got, torch.tensor(dots, dtype=torch.float64))


# Derivatives.


def first_and_second(function: Callable[..., Tensor], inputs: list[Tensor]) -> None:
    inputs = [tensor.requires_grad_() for tensor in inputs]
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


def test_derivatives_of_contract(device):
    leaves, fixed = case(((2,), (1,), ()), m=3, outs=2, ins=2)
    indices = fixed["indices"].to(device)

    def function(values: Tensor, x: Tensor) -> Tensor:
        with sw.engine("triton"):
            return contract(indices, values, x, (2,))

    first_and_second(function, [t.to(device) for t in leaves.values()])


def test_derivatives_of_dot(device):
    rows, cols = random_tuples((2,), 3, (2, 2)).to(device).unbind(-1)
    y = torch.randn(2, 2, 2, dtype=torch.float64, generator=seeded(0)).to(device)
    x = torch.randn(2, 2, 2, dtype=torch.float64, generator=seeded(1)).to(device)
    first_and_second(lambda y, x: library.dot(rows, cols, y, x), [y, x])


def test_one_gradient_alone(device):
    leaves, fixed = case(((2,), (3,), ()))
    everything = by_kernels(contract, leaves, device, **fixed)
    for wanted in leaves:
        others = {name: t for name, t in leaves.items() if name != wanted}
        alone = by_kernels(contract, {wanted: leaves[wanted]}, device, **others, **fixed)
        assert_near(alone, {name: everything[name] for name in alone})


def test_nothing_that_was_moved_is_kept(device):
    """Only indices, values and the input are."""
    leaves, fixed = case(((), (60,), ()), m=100)
    with sizes_kept() as kept:
        by_kernels(contract, leaves, device, **fixed)
    assert kept
    assert max(kept) <= 60 * 7
