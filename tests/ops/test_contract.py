import importlib
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tests.helpers import (
    LargestStorage,
    assert_same,
    output_and_gradients,
    pairs,
    random_indices,
    seeded,
    sizes_kept,
)
from torch import Tensor
from torch.nn import functional as F

from sparsewire.ops import (
    contract,
    contract_reference,
    mark_repeats,
    spread,
    window,
)

contraction = importlib.import_module("sparsewire.ops.contract")

SHAPES = [(), (3,), (2, 3), (2, 1, 3)]

# Dimensions before the wiring's own (w), batch dimensions that share one wiring (b), features (f).
SURROUNDINGS = [
    ((), (), ()),
    ((), (4,), ()),
    ((2,), (), ()),
    ((2,), (3,), (4,)),
    ((), (2, 3), (2, 5)),
    ((2, 3), (2,), (1,)),
]


# Products in flight: of one tuple; of a few; of all.
CHUNKS = {"one by one": 1, "a few together": 64, "all at once": 2**40}


@pytest.fixture(params=["as it comes", *CHUNKS])
def layout(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `contract` work in chunks of this size, however few the tuples."""
    if request.param in CHUNKS:
        monkeypatch.setattr(contraction, "_SMALL_ELEMENTS", -1)
        monkeypatch.setattr(contraction, "_CHUNK_ELEMENTS", CHUNKS[request.param])


in_every_layout = pytest.mark.usefixtures("layout")


def dense_tensor(indices: Tensor, values: Tensor, shape: Sequence[int]) -> Tensor:
    """W as a sum of outer products of one-hot vectors, of shape (*w, *shape)."""
    axes = "abcdefgh"[: len(shape)]
    hot = [F.one_hot(indices[..., i], n).to(values.dtype) for i, n in enumerate(shape)]
    return torch.einsum(
        ",".join(["...m", *(f"...m{a}" for a in axes)]) + f"->...{axes}", values, *hot
    )


def dense_contract(weights: Tensor, x: Tensor, wirings: int, outs: int, features: int) -> Tensor:
    """`torch.einsum` of a dense W (*w, *out, *in) with x (*w, *b, *in, *features), axis by axis."""
    ins = weights.dim() - wirings - outs
    w, o, i = "abc"[:wirings], "opqr"[:outs], "ijkl"[:ins]
    f = "xyz"[:features]
    b = "defgh"[: x.dim() - wirings - ins - features]
    return torch.einsum(f"{w}{o}{i},{w}{b}{i}{f}->{w}{b}{o}{f}", weights, x)


def case(
    out_shape: Sequence[int],
    in_shape: Sequence[int],
    surroundings: tuple[Sequence[int], Sequence[int], Sequence[int]] = ((), (), ()),
    m: int = 11,
) -> tuple[Tensor, dict[str, Any]]:
    """Index tuples, repeats among them, with random values and inputs in float64."""
    wirings, batch, features = surroundings
    indices = random_indices(wirings, m, (*out_shape, *in_shape))
    generator = seeded(2)
    values = torch.randn(*wirings, m, dtype=torch.float64, generator=generator)
    x_shape = (*wirings, *batch, *in_shape, *features)
    x = torch.randn(x_shape, dtype=torch.float64, generator=generator)
    return indices, {"values": values, "x": x}


@pairs(out_shape=SHAPES, in_shape=SHAPES, surroundings=SURROUNDINGS)
def test_the_reference_equals_the_dense_contraction(out_shape, in_shape, surroundings):
    """Output and every gradient; `test_engines_agree.py` compares engines with the reference."""
    indices, leaves = case(out_shape, in_shape, surroundings)
    wirings, features = len(surroundings[0]), len(surroundings[2])

    def dense(values: Tensor, x: Tensor) -> Tensor:
        weights = dense_tensor(indices, values, (*out_shape, *in_shape))
        return dense_contract(weights, x, wirings, len(out_shape), features)

    got = output_and_gradients(
        lambda values, x: contract_reference(indices, values, x, out_shape, features), leaves
    )
    assert_same(got, output_and_gradients(dense, leaves))


@in_every_layout
def test_first_and_second_derivatives():
    indices, leaves = case((3,), (2, 2), ((2,), (2,), (2,)), m=6)
    inputs = [tensor.requires_grad_() for tensor in leaves.values()]

    def function(values: Tensor, x: Tensor) -> Tensor:
        return contract(indices, values, x, (3,), features=1)

    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


# Precision.


@in_every_layout
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_adds_in_float32(dtype):
    """A sum of ones in half precision would stop at 2,048 or at 256."""
    m = 4096
    indices = torch.stack([torch.zeros(m), torch.arange(m)], dim=-1).long()
    ones = torch.ones(m, dtype=dtype)
    result = contract(indices, ones, ones, (1,))
    assert result.dtype == dtype
    assert result.item() == m


@in_every_layout
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("value_dtype", [torch.bfloat16, torch.float32], ids=str)
def test_the_result_has_the_dtype_of_the_input(dtype, value_dtype):
    indices, leaves = case((5,), (6,), ((), (3,), ()))
    leaves = {"values": leaves["values"].to(value_dtype), "x": leaves["x"].to(dtype)}
    wide = {name: tensor.float() for name, tensor in leaves.items()}
    result = contract(indices, **leaves, out_shape=(5,))
    assert torch.equal(result, contract(indices, **wide, out_shape=(5,)).to(dtype))


@in_every_layout
def test_autocast_changes_nothing():
    indices, leaves = case((5,), (6,), ((), (3,), ()))
    leaves = {name: tensor.float() for name, tensor in leaves.items()}
    want = output_and_gradients(lambda values, x: contract(indices, values, x, (5,)), leaves)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = output_and_gradients(lambda values, x: contract(indices, values, x, (5,)), leaves)
    assert_same(got, want, rtol=0, atol=0)


# Memory.


@in_every_layout
def test_nothing_dense_is_made():
    """Nothing is larger than the input and the values, in the second derivative neither."""
    n, m, batch = 2**20, 300, 3
    indices, leaves = case((n,), (n,), ((), (batch,), ()), m)
    values, x = (tensor.float().requires_grad_() for tensor in leaves.values())
    with LargestStorage() as largest:
        result = contract(indices, values, x, (n,))
        first = torch.autograd.grad(result.square().sum(), [values, x], create_graph=True)
        torch.cat([gradient.flatten() for gradient in first]).square().sum().backward()
    assert values.grad is not None
    assert values.grad.count_nonzero() > 0
    assert largest.bytes <= (n * batch + m) * 4


def test_what_is_gathered_is_neither_whole_nor_kept(monkeypatch):
    n, m, batch = 20, 3000, 32
    monkeypatch.setattr(contraction, "_CHUNK_ELEMENTS", 2**10)
    indices, leaves = case((n,), (n,), ((), (batch,), ()), m)
    values, x = (tensor.float().requires_grad_() for tensor in leaves.values())
    with LargestStorage() as largest, sizes_kept() as kept:
        contract(indices, values, x, (n,)).square().sum().backward()
    assert largest.bytes < m * batch
    assert max(kept) == m


# The whole pipeline against the dense layer.


def dense_weights(means: Tensor, variances: Tensor, values: Tensor, shape: Sequence[int]) -> Tensor:
    """W[j] = Σ_i v_i N(j | mean_i, variance_i) / Σ_l N(l | mean_i, variance_i), for all j."""
    grid = torch.cartesian_prod(*map(torch.arange, shape)).view(-1, len(shape))
    law = torch.distributions.Normal(means.unsqueeze(1), variances.sqrt().unsqueeze(1))
    density = law.log_prob(grid.to(means.dtype)).sum(-1).exp()
    return (values @ (density / density.sum(-1, keepdim=True))).view(*shape)


@in_every_layout
@pytest.mark.parametrize(
    ("out_shape", "in_shape"),
    [((3,), (4,)), ((2, 2), (3,)), ((2,), (3, 2)), ((2, 1, 2), (3,)), ((), (5,)), ((5,), ())],
    ids=str,
)
def test_all_tuples_enumerated_equal_the_dense_layer(out_shape, in_shape):
    shape, k = (*out_shape, *in_shape), 6
    generator = seeded(3)
    means, variances = torch.rand(2, k, len(shape), dtype=torch.float64, generator=generator)
    leaves = {
        "means": means * (torch.tensor(shape) - 1),
        "variances": variances + 0.2,
        "values": torch.randn(k, dtype=torch.float64, generator=generator),
        "x": torch.randn(7, *in_shape, dtype=torch.float64, generator=generator),
    }

    def sparse(means: Tensor, variances: Tensor, values: Tensor, x: Tensor) -> Tensor:
        indices = window(means, shape, region=shape).flatten(-3, -2)
        repeats = mark_repeats(indices, shape)
        return contract(indices, spread(means, variances, values, indices, repeats), x, out_shape)

    def dense(means: Tensor, variances: Tensor, values: Tensor, x: Tensor) -> Tensor:
        weights = dense_weights(means, variances, values, shape)
        return dense_contract(weights, x, wirings=0, outs=len(out_shape), features=0)

    assert_same(output_and_gradients(sparse, leaves), output_and_gradients(dense, leaves))
