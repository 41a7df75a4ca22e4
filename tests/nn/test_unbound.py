"""Raw tuples for given places: what `Layout.unbound` returns is bound back to the same places."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sparsewire import Banded, Convolution, FreeTuples, HyperLayer, Layout, LowerTriangular, Shapes
from sparsewire.ops import fractions, rounded
from sparsewire.ops.bound import EDGES, unbound_fractions

DTYPES = (torch.float64, torch.float32)

# How far means may be from their places: at the ends of an axis, and, in a layout whose limits
# depend on the row, as far again because the row is off too.
PLAIN, INTERVAL = 0.02, 0.04
ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-5}


def allowed_places(layout: Layout, shapes: Shapes) -> Tensor:
    sizes = layout.space(shapes)
    places = torch.cartesian_prod(*map(torch.arange, sizes)).view(-1, len(sizes))
    allowed = layout.allowed(places, shapes)
    return places if allowed is None else places[allowed]


sizes = st.integers(1, 6)
for_edges = pytest.mark.parametrize("edge", EDGES)


@st.composite
def layouts(draw: st.DrawFn, kind: str) -> tuple[Callable[[], FreeTuples], Shapes, float]:
    """A source with a layout, shapes that fit, and how far means may be from their places."""
    some = st.lists(sizes, min_size=1, max_size=2).map(tuple)
    rows, cols, kernel = draw(sizes), draw(sizes), draw(some)
    if kind == "plain":
        outs = draw(some)
        rank = len(outs) + len(kernel)
        return functools.partial(FreeTuples, 1, rank), Shapes(outs, kernel), PLAIN
    if kind == "lower":
        return functools.partial(LowerTriangular, 1), Shapes((rows,), (cols,)), INTERVAL
    if kind == "banded":
        below, above = draw(st.integers(0, 4)), draw(st.integers(0, 4))
        shapes = Shapes((draw(st.integers(1, cols + below)),), (cols,))
        return functools.partial(Banded, below, above, 1), shapes, INTERVAL
    shapes = Shapes((rows, *[1] * len(kernel)), (cols, *kernel))
    return functools.partial(Convolution, kernel, 1, padding=0), shapes, PLAIN


@for_edges
@pytest.mark.parametrize("kind", ["plain", "lower", "banded", "convolution"])
@given(data=st.data())
def test_every_place_of_a_layout(kind, edge, data):
    source, shapes, offset = data.draw(layouts(kind))
    layout = source().layout
    places = allowed_places(layout, shapes)
    raw = layout.unbound(places, shapes, edge)
    assert raw.dtype == torch.float64
    assert raw.isfinite().all()
    for dtype in DTYPES:
        means = layout.bound(raw.to(dtype), shapes, edge)
        assert torch.equal(rounded(means, layout.space(shapes)), places)
        assert torch.equal(layout.settle(rounded(means, layout.space(shapes)), shapes), places)
        assert (means - places).abs().max() <= offset + ROUNDING[dtype]


@for_edges
@given(sizes=st.lists(st.integers(3, 9), min_size=1, max_size=3))
def test_places_inside_are_met_and_those_at_the_ends_just_missed(edge, sizes):
    layout, shapes = Layout(), Shapes(tuple(sizes[:1]), tuple(sizes[1:]))
    places = allowed_places(layout, shapes)
    offsets = layout.bound(layout.unbound(places, shapes, edge), shapes, edge) - places
    inside = (places > 0) & (places < torch.tensor(layout.space(shapes)) - 1)
    assert offsets[inside].abs().max() < 1e-12
    torch.testing.assert_close(offsets[places == 0], torch.full_like(offsets[places == 0], PLAIN))
    ends = offsets[~inside & (places > 0)]
    torch.testing.assert_close(ends, torch.full_like(ends, -PLAIN))


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


@for_edges
@pytest.mark.parametrize("size", [2**10, 2**16, 2**19])
def test_long_axes_in_float32(edge, size):
    """Both ends, their neighbours, the middle and a hundred places between."""
    layout, shapes = Layout(), Shapes((size,), (3,))
    column = torch.cat(
        [torch.tensor([0, 1, size // 2, size - 2, size - 1]), torch.linspace(0, size - 1, 100)]
    ).long()
    places = torch.stack([column, column % 3], dim=-1)
    means = layout.bound(layout.unbound(places, shapes, edge).float(), shapes, edge)
    assert torch.equal(rounded(means, (size, 3)), places)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_last_place_of_the_longest_axis_that_wraps(dtype):
    """Axes of 2²² places are allowed in float32, and longer ones in float64."""
    layout, shapes, place = Layout(), Shapes((2**22,), (1,)), torch.tensor([[2**22 - 1, 0]])
    means = layout.bound(layout.unbound(place, shapes, "wrap").to(dtype), shapes, "wrap")
    assert torch.equal(rounded(means, (2**22, 1)), place)


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
    edge: Any, source: Callable[..., FreeTuples], in_shape: Any, out_shape: Any
) -> None:
    """Even at the ends, where `clamp` would have none and `sigmoid` next to none."""
    shapes = Shapes(out_shape, in_shape)
    layout = source(tuples=1).layout
    places = allowed_places(layout, shapes)
    tuples = source(tuples=len(places), edge=edge)
    layer = HyperLayer(tuples, in_shape, out_shape)
    raw = layout.unbound(places, shapes, edge)
    tuples.raw_means.data.copy_(raw)
    means, sizes = layer.wiring().means, layout.space(shapes)
    axes = [axis for axis, size in enumerate(sizes) if size > 1]
    for axis in axes[:1] if isinstance(tuples, LowerTriangular | Banded) else axes:
        (gradient,) = torch.autograd.grad(means[:, axis].sum(), tuples.raw_means, retain_graph=True)
        assert gradient[:, axis].min() > 0.9 * PLAIN


@for_edges
@given(position=st.floats(1e-12, 1 - 1e-12))
def test_fractions_are_undone(edge, position):
    number = torch.tensor([position], dtype=torch.float64)
    back = fractions(unbound_fractions(number, edge), edge)
    torch.testing.assert_close(back, number, rtol=1e-12, atol=1e-15)


@pytest.mark.usefixtures("unchecked")
def test_wrong_positions_are_refused():
    whole: Any = torch.tensor([1])
    bad: Any = "mirror"
    with pytest.raises(TypeError, match="position must have a floating-point dtype"):
        unbound_fractions(whole)
    with pytest.raises(ValueError, match="edge must be one of 'sigmoid', 'clamp', 'wrap'"):
        unbound_fractions(torch.tensor([0.5]), bad)
