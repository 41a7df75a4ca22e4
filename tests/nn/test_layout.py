"""Templates by hand, and the properties of every constraint."""

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import linalg
from tests.helpers import sampled_layer, seeded, seeds
from tests.nn.dense import MODES, matrix_of, tuples_of
from torch import Tensor

from sparsewire import (
    Banded,
    BlockDiagonal,
    Convolution,
    FreeTuples,
    HyperLayer,
    Layout,
    LowerTriangular,
    Shapes,
    Template,
    fan_in,
)
from sparsewire.ops import fractions, rounded
from sparsewire.ops.bound import EDGES, Edge, unbound_fractions

# Templates.


def test_places_by_hand():
    """W has shape (2, 3, 4); its first and third columns are fixed, pair by pair of tuples."""
    table = torch.tensor([[1, -1, 0], [1, -1, 0], [0, -1, 3], [0, -1, 3]])
    template, shapes = Template(table), Shapes(outs=(2,), ins=(3, 4))
    assert template.learned == [1]
    assert template.space(shapes) == (3,)
    assert template.default_context(4) == 2
    indices = torch.tensor([[[0], [2], [2]], [[1], [0], [2]]])
    values = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    placed = template.place(indices, values, shapes)
    assert placed.rows.tolist() == [1, 1, 1, 0, 0, 0]
    assert placed.cols.tolist() == [0, 8, 8, 7, 3, 11]
    assert placed.values.tolist() == [1, 2, 3, 4, 5, 6]


def test_all_columns_of_one_side_fixed():
    template, shapes = Template(fan_in((2, 2), (5,))), Shapes((2, 2), (5,))
    indices = torch.tensor([[[4], [0]], [[1], [1]], [[2], [3]], [[0], [4]]])
    placed = template.place(indices, torch.ones(4, 2), shapes)
    assert placed.rows.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert placed.cols.tolist() == [4, 0, 1, 1, 2, 3, 0, 4]
    template, shapes = Template(torch.tensor([[-1, 2, 0], [-1, 0, 1]])), Shapes((5,), (3, 2))
    placed = template.place(indices[:2], torch.ones(2, 2), shapes)
    assert placed.rows.tolist() == [4, 0, 1, 1]
    assert placed.cols.tolist() == [4, 4, 1, 1]


def test_nothing_fixed_is_the_plain_layout():
    shapes = Shapes((3, 2), (4,))
    indices = torch.stack([torch.randint(n, (1, 9), generator=seeded(n)) for n in (3, 2, 4)], -1)
    values = torch.randn(1, 9, generator=seeded(0))
    layouts = Template(torch.full((3, 3), -1)), Layout()
    assert layouts[0].space(shapes) == layouts[1].space(shapes) == (3, 2, 4)
    for got, want in zip(*(each.place(indices, values, shapes) for each in layouts), strict=True):
        assert torch.equal(got, want)


def test_fan_in_of_any_rank():
    expected = [[a, b, -1, -1] for a, b in itertools.product(range(2), range(3)) for _ in range(2)]
    assert fan_in((2, 3), (28, 28), tuples=2).tolist() == expected
    assert fan_in((1,), (7,)).tolist() == [[0, -1]]
    assert fan_in((), (4,), tuples=3).tolist() == [[-1]] * 3  # one place, as in the layers
    in_shape: Any = (None, 28)
    assert fan_in((2,), in_shape).tolist() == [[0, -1, -1], [1, -1, -1]]


def test_tuples_compete_inside_their_runs():
    """Runs of 4 and 2 rows: contexts of 1 and 2 keep rows apart, others do not."""
    table = torch.tensor([[0, -1]] * 4 + [[1, -1]] * 2)
    assert sampled_layer((5,), (2,), template=table).sample().indices.shape[0] == 3
    for context in (1, 2):
        layer = sampled_layer((5,), (2,), template=table, context=context, seed=0)
        expected = [part.sum() for part in layer.wiring().values.split([4, 2])]
        torch.testing.assert_close(matrix_of(layer).sum(1), torch.stack(expected))
    for context in (3, 6):
        with pytest.raises(ValueError, match="context must group tuples with the same fixed"):
            sampled_layer((5,), (2,), template=table, context=context)


# Constraints.


class Case(NamedTuple):
    """What it takes to make a constrained layer, and where its matrix may be nonzero."""

    source: Callable[..., FreeTuples]
    shapes: Shapes
    mask: np.ndarray
    numbers: list[float]
    options: dict[str, Any]
    edge: Edge

    def layer(self) -> HyperLayer:
        tuples = self.source(seed=0, edge=self.edge, schedule=None)
        count = tuples.raw_means.numel()
        raw = torch.tensor(self.numbers)
        tuples.raw_means.data.copy_(raw[:count].view_as(tuples.raw_means))
        tuples.raw_variances.data.copy_(raw[count : count + len(tuples.raw_variances)])
        return HyperLayer(tuples, self.shapes.ins, self.shapes.outs, **self.options)


# Far out, at the ends, in the middle, on ties, and anywhere.
raw_numbers = st.sampled_from([0.0, 0.5, 1.0, 0.25, -1.0, 1e30, -1e30, 1e-30]) | st.floats(
    -4, 4, width=32
)
small = st.integers(1, 5)


@st.composite
def cases(draw: st.DrawFn, kind: str) -> Case:
    """Raw numbers anywhere, narrow windows and usual ones, contexts of one tuple and of all."""
    rows, cols = draw(small), draw(small)
    if kind == "lower":
        source = functools.partial(LowerTriangular, tuples=3)
        shapes, mask = Shapes((rows,), (cols,)), np.tri(rows, cols)
    elif kind == "banded":
        below, above = draw(st.integers(0, 6)), draw(st.integers(0, 6))
        rows = draw(st.integers(1, cols + below))
        source = functools.partial(Banded, below, above, tuples=3)
        shapes = Shapes((rows,), (cols,))
        mask = np.tri(rows, cols, above) - np.tri(rows, cols, -below - 1)
    elif kind == "blocks":
        blocks = draw(st.integers(1, 3))
        source = functools.partial(BlockDiagonal, blocks, tuples=2)
        shapes = Shapes((blocks * rows,), (blocks * cols,))
        mask = linalg.block_diag(*[np.ones((rows, cols))] * blocks)
    else:  # in one dimension, where the matrix of a kernel of ones is short to write
        kernel, stride, padding = (draw(st.integers(a, b)) for a, b in ((1, 4), (1, 3), (0, 3)))
        size, outs, ins = (draw(st.integers(a, b)) for a, b in ((kernel, 6), (1, 2), (1, 2)))
        positions = (size + 2 * padding - kernel) // stride + 1
        offset = np.arange(size) - np.arange(positions)[:, None] * stride + padding
        source = functools.partial(Convolution, (kernel,), 3, stride, padding)
        shapes = Shapes((outs, positions), (ins, size))
        mask = np.kron(np.ones((outs, ins)), (offset >= 0) & (offset < kernel))
    numbers = draw(st.lists(raw_numbers, min_size=24, max_size=24))
    options = {name: draw(st.sampled_from([1, None])) for name in ("window", "context")}
    edge = draw(st.sampled_from(EDGES))
    return Case(source, shapes, np.asarray(mask, dtype=bool), numbers, options, edge)


MATRICES = ("lower", "banded", "blocks")
for_matrices = pytest.mark.parametrize("kind", MATRICES)
for_all = pytest.mark.parametrize("kind", [*MATRICES, "convolution"])


@pytest.mark.parametrize("mode", MODES)
@for_all
@given(data=st.data(), seed=seeds)
def test_every_draw_lies_inside_the_constraint_and_no_value_is_lost(kind, mode, data, seed):
    """What the shares of a tuple of a matrix add up to is its value, wherever it lies."""
    case = data.draw(cases(kind))
    layer = case.layer()
    weights = matrix_of(layer, mode=mode, generator=seeded(seed)).detach()
    assert weights.isfinite().all()
    assert weights[~torch.from_numpy(case.mask)].count_nonzero() == 0
    if kind in MATRICES:
        total = tuples_of(layer).values.detach().sum()
        torch.testing.assert_close(weights.sum(), total, rtol=1e-4, atol=1e-4)


def is_allowed(layout: Layout, indices: Tensor, shapes: Shapes) -> Tensor:
    allowed = layout.allowed(indices, shapes)
    return torch.ones(indices.shape[:-1], dtype=torch.bool) if allowed is None else allowed


@for_matrices
@given(data=st.data())
def test_the_allowed_tuples_fill_the_mask_once_and_others_settle_there(kind, data):
    case = data.draw(cases(kind))
    layout, shapes = case.layer().layout, case.shapes
    everything = torch.cartesian_prod(*map(torch.arange, layout.space(shapes)))
    inside = is_allowed(layout, everything, shapes)
    settled = layout.settle(everything, shapes)
    assert is_allowed(layout, settled, shapes).all()
    assert torch.equal(layout.settle(settled, shapes), settled)
    assert torch.equal(settled[inside], everything[inside])
    indices = everything[inside].expand(getattr(layout, "blocks", 1), -1, -1)
    rows, cols, values = layout.place(indices, torch.ones(indices.shape[:-1]), shapes)
    counts = torch.zeros(case.mask.shape).index_put((rows, cols), values, accumulate=True)
    assert torch.equal(counts, torch.from_numpy(case.mask).float())


def test_a_tie_at_the_corner_of_a_band_keeps_its_value():
    """The mean lies half-way between two allowed tuples and rounds to a third, that is not."""
    source = Banded(below=1, above=0, tuples=1, values=1.0, edge="clamp", schedule=None)
    source.raw_means.data.copy_(torch.tensor([[0.5, 0.0]]))
    layer = HyperLayer(source, (2,), (2,))
    for mode in MODES:
        weights = matrix_of(layer, mode=mode).detach()
        assert weights[0, 1] == 0
        assert weights.sum().item() == pytest.approx(1.0), mode


# Raw tuples for given places: what `Layout.unbound` returns is bound back to the same places.

# How far means may be from their places: at the ends of an axis, and, in a layout whose limits
# depend on the row, as far again because the row is off too.
PLAIN, INTERVAL = 0.02, 0.04
ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-5}

for_edges = pytest.mark.parametrize("edge", EDGES)


def allowed_places(layout: Layout, shapes: Shapes) -> Tensor:
    everything = torch.cartesian_prod(*map(torch.arange, layout.space(shapes)))
    return everything[is_allowed(layout, everything, shapes)]


@for_edges
@for_all
@given(data=st.data())
def test_means_are_put_at_every_place_of_a_layout(kind, edge, data):
    case = data.draw(cases(kind))
    layout, shapes = case.source().layout, case.shapes
    places, space = allowed_places(layout, shapes), layout.space(shapes)
    raw = layout.unbound(places, shapes, edge)
    assert raw.dtype == torch.float64
    assert raw.isfinite().all()
    offset = INTERVAL if kind in ("lower", "banded") else PLAIN
    for dtype, rounding in ROUNDING.items():
        means = layout.bound(raw.to(dtype), shapes, edge)
        assert torch.equal(rounded(means, space), places)
        assert (means - places).abs().max() <= offset + rounding


@for_edges
@given(sizes=st.lists(st.integers(3, 9), min_size=2, max_size=3).map(tuple))
def test_places_inside_are_met_and_those_at_the_ends_just_missed(edge, sizes):
    layout, shapes = Layout(), Shapes(sizes[:1], sizes[1:])
    places = allowed_places(layout, shapes)
    offsets = layout.bound(layout.unbound(places, shapes, edge), shapes, edge) - places
    ends = (places == 0).double() - (places == torch.tensor(sizes) - 1).double()
    torch.testing.assert_close(offsets, PLAIN * ends, rtol=1e-6, atol=1e-12)


@for_edges
@pytest.mark.parametrize("source", [LowerTriangular(1), Banded(2, 3, 1)])
def test_places_between_the_limits_of_their_row_are_met(edge, source):
    """In the first and last row too, whose means are a little inside."""
    layout, shapes = source.layout, Shapes((9,), (9,))
    places = allowed_places(layout, shapes)
    low, high = layout.limits(places[:, 0], shapes)
    between = (places[:, 1] > low) & (places[:, 1] < high)
    assert {0, 8} & set(places[between][:, 0].tolist())
    means = layout.bound(layout.unbound(places, shapes, edge), shapes, edge)
    assert (means - places)[between][:, 1].abs().max() < 1e-9


@pytest.mark.parametrize(
    ("edge", "size"), [*itertools.product(EDGES, (2**10, 2**16, 2**19)), ("wrap", 2**22)]
)
def test_long_axes_in_float32(edge, size):
    """Both ends, their neighbours, the middle and a hundred places between."""
    layout, shapes = Layout(), Shapes((size,), (3,))
    near = torch.tensor([0, 1, size // 2, size - 2, size - 1])
    column = torch.cat([near, torch.linspace(0, size - 1, 100).long().clamp(max=size - 1)])
    places = torch.stack([column, column % 3], dim=-1)
    means = layout.bound(layout.unbound(places, shapes, edge).float(), shapes, edge)
    assert torch.equal(rounded(means, (size, 3)), places)


@for_edges
@pytest.mark.parametrize(
    ("source", "in_shape", "out_shape"),
    [
        (functools.partial(FreeTuples, rank=3), (3, 2), (4,)),
        (LowerTriangular, (4,), (5,)),
        (functools.partial(Banded, 1, 2), (5,), (4,)),
        (functools.partial(Convolution, (3,)), (2, 4), (2, 4)),
    ],
)
def test_gradients_reach_raw_means_that_were_put_at_a_place(
    edge: Edge, source: Callable[..., FreeTuples], in_shape: Any, out_shape: Any
) -> None:
    """Even at the ends, where `clamp` would have none and `sigmoid` next to none."""
    shapes = Shapes(out_shape, in_shape)
    layout = source(tuples=1).layout
    places = allowed_places(layout, shapes)
    tuples = source(tuples=len(places), edge=edge, schedule=None)
    tuples.raw_means.data.copy_(layout.unbound(places, shapes, edge))
    means = HyperLayer(tuples, in_shape, out_shape).wiring().means
    assert torch.equal(rounded(means, layout.space(shapes)), places)
    axes = [axis for axis, size in enumerate(layout.space(shapes)) if size > 1]
    for axis in axes[:1] if isinstance(tuples, LowerTriangular | Banded) else axes:
        (gradient,) = torch.autograd.grad(means[:, axis].sum(), tuples.raw_means, retain_graph=True)
        assert gradient[:, axis].min() > 0.9 * PLAIN


@for_edges
@given(position=st.floats(1e-12, 1 - 1e-12))
def test_fractions_are_undone(edge, position):
    number = torch.tensor([position], dtype=torch.float64)
    back = fractions(unbound_fractions(number, edge), edge)
    torch.testing.assert_close(back, number, rtol=1e-12, atol=1e-15)
