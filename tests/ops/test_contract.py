import importlib
from collections.abc import Callable, Sequence
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
    contract_flat,
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
LAYOUTS = ["as it comes", *CHUNKS]

Engine = Callable[..., Tensor]


def force(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `contract` work in chunks of this size, however few the tuples."""
    if layout in CHUNKS:
        monkeypatch.setattr(contraction, "_SMALL_ELEMENTS", -1)
        monkeypatch.setattr(contraction, "_CHUNK_ELEMENTS", CHUNKS[layout])


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    force(request.param, monkeypatch)


@pytest.fixture(params=["reference", *LAYOUTS])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """The reference, and `contract` in every layout."""
    force(request.param, monkeypatch)
    return contract_reference if request.param == "reference" else contract


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


def compare(
    engine: Engine,
    indices: Tensor,
    leaves: dict[str, Any],
    out_shape: Sequence[int],
    features: int = 0,
) -> None:
    """Hold an engine against the dense contraction: output and every gradient, by name."""
    wirings = indices.dim() - 2
    ins = indices.shape[-1] - len(out_shape)
    end = leaves["x"].dim() - features
    shape = (*out_shape, *leaves["x"].shape[end - ins : end])

    def dense(values: Tensor, x: Tensor) -> Tensor:
        weights = dense_tensor(indices, values, shape)
        return dense_contract(weights, x, wirings, len(out_shape), features)

    got = output_and_gradients(
        lambda values, x: engine(indices, values, x, out_shape, features), leaves
    )
    assert_same(got, output_and_gradients(dense, leaves))


# Against hand-worked tables and the dense contraction.


@pytest.mark.parametrize(
    ("indices", "values", "x", "out_shape", "features", "expected"),
    [
        ([[0, 2], [1, 0]], [5, 2], [1, 2, 3], (2,), 0, [15, 2]),
        ([[0, 1], [0, 1], [0, 0]], [1, 2, 4], [10, 1], (2,), 0, [43, 0]),
        ([[2, 0], [0, 1], [1, 2]], [1, 1, 1], [7, 8, 9], (3,), 0, [8, 9, 7]),
        ([[0], [2]], [3, 4], [1, 10, 100], (), 0, 403),
        ([[0], [2]], [3, 4], 10, (3,), 0, [30, 0, 40]),
        ([[1, 0, 1], [0, 1, 0]], [2, 3], [5, 7], (2, 2), 0, [[0, 15], [14, 0]]),
        ([[1, 0, 1]], [2], [[5, 7], [1, 1]], (2,), 0, [0, 14]),
        ([[1, 0], [1, 1]], [1, 10], [[1, 2], [3, 4]], (2,), 1, [[0, 0], [31, 42]]),
        ([[1, 0], [1, 1]], [1, 10], [[1, 2], [3, 4]], (2,), 0, [[0, 21], [0, 43]]),
        ([[[0, 0]], [[0, 1]]], [[1], [10]], [[1, 2], [3, 4]], (1,), 0, [[1], [40]]),
    ],
    ids=[
        "vector",
        "equal indices add",
        "permutation",
        "to a scalar",
        "from a scalar",
        "to a matrix",
        "from a matrix",
        "matrix by matrix",
        "batch",
        "one wiring each",
    ],
)
def test_by_hand(engine, indices, values, x, out_shape, features, expected):
    values, x, expected = (torch.tensor(numbers).float() for numbers in (values, x, expected))
    torch.testing.assert_close(
        engine(torch.tensor(indices), values, x, out_shape, features), expected
    )


@pairs(out_shape=SHAPES, in_shape=SHAPES, surroundings=SURROUNDINGS)
def test_equals_dense_contraction(engine, out_shape, in_shape, surroundings):
    indices, leaves = case(out_shape, in_shape, surroundings)
    compare(engine, indices, leaves, out_shape, features=len(surroundings[2]))


@pytest.mark.parametrize(
    "surroundings", [((), (), ()), ((3,), (5,), (7,)), ((), (31,), ())], ids=str
)
def test_odd_sizes_equal_dense_contraction(engine, surroundings):
    indices, leaves = case((63,), (7, 9), surroundings, m=127)
    compare(engine, indices, leaves, (63,), features=len(surroundings[2]))


@pytest.mark.parametrize(
    ("surroundings", "m"),
    [
        (((), (0,), ()), 5),
        (((0,), (2,), ()), 5),
        (((2,), (3, 0), (2,)), 5),
        (((), (2,), (0,)), 5),
        (((), (), ()), 0),
        (((2,), (3,), (4,)), 0),
    ],
    ids=str,
)
def test_empty_batch_and_no_tuples(engine, surroundings, m):
    indices, leaves = case((3,), (2, 2), surroundings, m)
    compare(engine, indices, leaves, (3,), features=len(surroundings[2]))


@pytest.mark.parametrize("lanes", [1, 4])
def test_strided_inputs_and_gradients(engine, lanes):
    indices, leaves = case((5,), (6,), ((), (lanes,), ()))
    expected = engine(indices, leaves["values"], leaves["x"], (5,))
    strided = torch.zeros(6, 3 * lanes, dtype=torch.float64)[:, ::3].T.copy_(leaves["x"])
    strided.requires_grad_()
    result = engine(indices, leaves["values"].repeat_interleave(2)[::2], strided, (5,))
    torch.testing.assert_close(result, expected)
    (gradient,) = torch.autograd.grad(result.sum(), strided)
    weights = dense_tensor(indices, leaves["values"], (5, 6))
    torch.testing.assert_close(gradient, weights.sum(0).expand(lanes, 6))


@in_every_layout
def test_flat_is_the_matrix_case():
    indices, leaves = case((5,), (6,), ((2,), (3,), (4,)))
    rows, cols = indices.unbind(-1)
    flat = output_and_gradients(
        lambda values, x: contract_flat(rows, cols, values, x, 5, features=1), leaves
    )
    full = output_and_gradients(
        lambda values, x: contract(indices, values, x, (5,), features=1), leaves
    )
    assert_same(flat, full, rtol=0, atol=0)


# Derivatives.


@pytest.mark.parametrize(
    ("out_shape", "in_shape", "surroundings"),
    [
        ((3,), (4,), ((), (), ())),
        ((2, 2), (3,), ((), (2,), (3,))),
        ((3,), (2, 2), ((2,), (2,), ())),
        ((), (4,), ((2,), (), (2,))),
        ((4,), (), ((), (2,), ())),
    ],
    ids=str,
)
def test_first_and_second_derivatives(engine, out_shape, in_shape, surroundings):
    indices, leaves = case(out_shape, in_shape, surroundings, m=6)
    inputs = [tensor.requires_grad_() for tensor in leaves.values()]

    def function(values: Tensor, x: Tensor) -> Tensor:
        return engine(indices, values, x, out_shape, features=len(surroundings[2]))

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


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ([0, 0, 3], r"indices must lie in 0 … 2 in column 2; got 3 … 3"),
        ([0, -1, 0], r"indices must lie in 0 … 1 in column 1; got -1 … -1"),
        ([4, 0, 0], r"indices must lie in 0 … 3 in column 0; got 4 … 4"),
    ],
)
def test_indices_outside_of_the_tensor_are_refused(index, message):
    with pytest.raises(ValueError, match=message):
        contract(torch.tensor([index]), torch.ones(1), torch.ones(2, 3), (4,))
