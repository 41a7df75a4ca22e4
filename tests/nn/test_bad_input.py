# ruff: noqa: E501  # a table, one bad call a line
"""Bad arguments of layers: what is said, and that nothing has changed afterwards."""

import copy
import re
from typing import Any

import pytest
import torch
from tests.helpers import assert_same, sampled_layer, seeded
from tests.nn.dense import Look

from sparsewire import (
    Banded,
    BlockDiagonal,
    Convolution,
    FreeTuples,
    FrozenLayer,
    HyperLayer,
    LowerTriangular,
    SparseLayer,
    fan_in,
)
from sparsewire.ops.bound import unbound_fractions

# Any, since most calls below are wrong on purpose.
TEXT: Any = "text"
REAL: Any = 2.5
NUMBER: Any = 4
NONE: Any = None
ROWS: Any = [[0, -1]]
PARTS: Any = torch.zeros(3, 2), torch.zeros(3), torch.ones(2)


def sparse(*shapes: Any, **options: Any) -> SparseLayer:
    """A layer from five numbers to four, unless it says otherwise."""
    return sampled_layer(*(shapes or ((5,), (4,))), **{"tuples": 6, **options})


def templated(**options: Any) -> SparseLayer:
    """Two tuples for each of three outputs."""
    return sampled_layer((5,), (3,), template=fan_in((3,), (5,), tuples=2), **options)


def adaptive() -> HyperLayer:
    """A layer that gives each input a wiring of its own."""
    return HyperLayer(Look((5,), 6, 2), (5,), (4,))


def from_table(rows: Any) -> SparseLayer:
    """A layer from five numbers to four with the columns that these rows fix."""
    return sampled_layer((5,), (4,), template=torch.tensor(rows, dtype=torch.int64))


SHAPE = "x must have shape (*b, *in_shape, *features) with in_shape "
OPEN = "in_shape (None,) leaves sizes open; got None"
READS = "x must be given, since the source of this layer reads it; got None"

REFUSED = [
    # shapes
    (lambda: sparse((5, 0), (4,)), ValueError, "in_shape[1] must be at least 1; got 0"),
    (lambda: sparse((5,), (-4,)), ValueError, "out_shape[0] must be at least 1; got -4"),
    (lambda: sparse((5,), (NONE,)), TypeError, "out_shape[0] must be an integer; got None"),
    (lambda: sparse(NUMBER, (4,)), TypeError, "in_shape must be a sequence of integers or None; got 4"),
    (lambda: sparse((5,), NUMBER), TypeError, "out_shape must be a sequence of integers; got 4"),
    (lambda: sparse((2**25,), (4,)).sample(), ValueError, "for torch.float32 means, which cannot tell more indices apart; got 33554432"),
    (lambda: HyperLayer(LowerTriangular(3), (2**25,), (2**25,)).sample(), ValueError, "for torch.float32 means, which cannot tell more indices apart; got 33554432"),
    (lambda: sparse((2**32,), (2**31,)).sample(), ValueError, "must have at most 2**63 - 1 elements"),
    (lambda: HyperLayer(Look((5,), 6, 2), NUMBER, (4,)), TypeError, "in_shape must be a sequence of integers or None; got 4"),
    # counts
    (lambda: sparse(tuples=0), ValueError, "tuples must be at least 1; got 0"),
    (lambda: sparse(tuples=None), TypeError, "tuples must be given, or a template with a row for each; got None"),
    (lambda: sparse(local_samples=-1), ValueError, "local_samples must be at least 0; got -1"),
    (lambda: sparse(global_samples=-1), ValueError, "global_samples must be at least 0; got -1"),
    (lambda: sparse(wirings=0), ValueError, "wirings must be at least 1; got 0"),
    (lambda: sparse(features=-1), ValueError, "features must be at least 0; got -1"),
    # region and window
    (lambda: sparse(region=6), ValueError, "region must be at most 5, the largest of (4, 5); got 6"),
    (lambda: sparse(region=(4,)), ValueError, "region must have 2 sizes, one for each column; got (4,)"),
    (lambda: sparse(region=0), ValueError, "region must be at least 1; got 0"),
    (lambda: sparse(window=9), ValueError, "window must be at most 5, the largest of (4, 5); got 9"),
    # contexts
    (lambda: sparse(context=0), ValueError, "context must be at least 1; got 0"),
    (lambda: sparse(context=4), ValueError, "context must divide the number of tuples, 6; got 4"),
    (lambda: HyperLayer(BlockDiagonal(2, 4), (4,), (4,), context=3).sample(), ValueError, "context must divide 4, the tuples of a block; got 3"),
    (lambda: HyperLayer(BlockDiagonal(2, 4), (4,), (4,), context=8).sample(), ValueError, "context must divide 4, the tuples of a block; got 8"),
    # templates
    (lambda: templated(tuples=3), ValueError, "template must have a row for each of the 3 tuples; got 6"),
    (lambda: HyperLayer(BlockDiagonal(2, 3), (4,), (4,), template=fan_in((4,), (4,))), ValueError, "template must be None for a source with a layout of its own"),
    (lambda: fan_in((0,), (4,)), ValueError, "out_shape[0] must be at least 1; got 0"),
    (lambda: fan_in((2,), (4,), tuples=0), ValueError, "tuples must be at least 1; got 0"),
    (lambda: fan_in((2,), NUMBER), TypeError, "in_shape must be"),
    (lambda: from_table([[0, -1], [-1, -1]]), ValueError, "got -1 in column 0"),
    (lambda: from_table([[-2, -1], [-2, -1]]), ValueError, "got -2 in column 0"),
    (lambda: from_table([[0, 1], [1, 1]]), ValueError, "template must leave a column to learn (−1 in every row); got none"),
    (lambda: from_table([[0, -1, -1]]), ValueError, "template must have 2 columns, one for each axis of W; got 3"),
    (lambda: from_table([[4, -1]]), ValueError, "template must hold indices below 4 in column 0; got 4"),
    (lambda: from_table([[-1, 0], [-1, 9]]), ValueError, "template must hold indices below 5 in column 1; got 9"),
    (lambda: from_table([0, -1]), ValueError, "template must have shape (k, r)"),
    (lambda: from_table([[], []]), ValueError, "template must have shape (k, r)"),
    (lambda: sparse(template=torch.zeros(6, 2)), TypeError, "template must have dtype torch.int64; got torch.float32"),
    (lambda: sparse(template=ROWS), TypeError, "template must be a tensor; got list"),
    # sources
    (lambda: FreeTuples(2, 0), ValueError, "rank must be at least 1; got 0"),
    (lambda: FreeTuples(2, 2, value_count=0), ValueError, "value_count must be at least 1; got 0"),
    (lambda: FreeTuples(2, 2, seed=TEXT), TypeError, "seed must be an integer; got 'text'"),
    (lambda: Banded(-1, 0, 3), ValueError, "below must be at least 0; got -1"),
    (lambda: Banded(0, -1, 3), ValueError, "above must be at least 0; got -1"),
    (lambda: BlockDiagonal(0, 3), ValueError, "blocks must be at least 1; got 0"),
    (lambda: BlockDiagonal(2, 0), ValueError, "tuples must be at least 1; got 0"),
    (lambda: Convolution((0,), 3), ValueError, "kernel[0] must be at least 1; got 0"),
    (lambda: Convolution(NUMBER, 3), TypeError, "kernel must be a sequence of integers; got 4"),
    (lambda: Convolution((), 3), ValueError, "kernel must"),
    (lambda: Convolution((3,), 3, stride=0), ValueError, "stride must be at least 1; got 0"),
    (lambda: Convolution((3,), 3, padding=-1), ValueError, "padding must be at least 0; got -1"),
    (lambda: Convolution((3,), 3, padding=(1, 1)), ValueError, "padding must have 1 entries, one for each axis of the kernel; got (1, 1)"),
    (lambda: Convolution((3,), 3, padding=REAL), TypeError, "padding must be an integer; got 2.5"),
    # shapes that do not fit a source
    (lambda: HyperLayer(LowerTriangular(3), (4, 4), (4,)), ValueError, "since LowerTriangular is a matrix; got (4,) and (4, 4)"),
    (lambda: HyperLayer(Banded(1, 1, 3), (4,), (2, 2)), ValueError, "since Banded is a matrix; got (2, 2) and (4,)"),
    (lambda: HyperLayer(Banded(1, 1, 3), (4,), (6,)), ValueError, "out_shape must be at most (5,), so that the band crosses every row; got (6,)"),
    (lambda: HyperLayer(BlockDiagonal(2, 3), (5,), (4,)), ValueError, "in_shape must be divisible by 2, the blocks; got (5,)"),
    (lambda: HyperLayer(BlockDiagonal(2, 3), (4,), (5,)), ValueError, "out_shape must be divisible by 2, the blocks; got (5,)"),
    (lambda: HyperLayer(Convolution((3,), 3), (2, 8), (3, 7)), ValueError, "out_shape must be (channels, 8)"),
    (lambda: HyperLayer(Convolution((3,), 3, padding=0), (2, 2), (3, 1)), ValueError, "out_shape must be (channels, 0)"),
    (lambda: HyperLayer(Convolution((3,), 3), (8,), (3, 8)), ValueError, "in_shape must have 2 sizes, channels and one for each axis of the kernel; got (8,)"),
    (lambda: HyperLayer(Convolution((3,), 3), (2, 8), (3, 8, 1)), ValueError, "out_shape must have 2 sizes, channels and one for each axis of the kernel; got (3, 8, 1)"),
    # shared values
    (lambda: sparse(share_values=[]), (TypeError, ValueError), "share_values must"),
    (lambda: sparse(share_values=[-1] * 6), ValueError, "share_values must hold numbers ≥ 0; got -1"),
    (lambda: sparse(share_values=[0, 1]), ValueError, "share_values must have an entry for each of the 6 tuples; got 2"),
    (lambda: sparse(share_values=torch.zeros(2, 3).long()), ValueError, "share_values must"),
    (lambda: sparse(share_values=[0.5] * 6), TypeError, "share_values must"),
    (lambda: sparse(share_values=TEXT), TypeError, "share_values must be a sequence of integers; got str"),
    # choices and numbers
    (lambda: sparse(edge="no"), ValueError, "edge must be one of 'sigmoid', 'clamp', 'wrap'; got 'no'"),
    (lambda: HyperLayer(Look((5,), 6, 2), (5,), (4,), edge=TEXT), ValueError, "edge must be one of 'sigmoid', 'clamp', 'wrap'; got 'text'"),
    (lambda: unbound_fractions(torch.tensor([0.5]), TEXT), ValueError, "edge must be one of 'sigmoid', 'clamp', 'wrap'; got 'text'"),
    (lambda: unbound_fractions(torch.tensor([1])), TypeError, "position must have a floating-point dtype"),
    (lambda: sparse(kernel="no"), ValueError, "kernel must be one of 'gaussian', 'student'; got 'no'"),
    (lambda: sparse(evaluation="no"), ValueError, "evaluation must be one of 'rounded', 'sampled', 'expected', 'straight-through'; got 'no'"),
    (lambda: sparse(variance_scale=-0.1), ValueError, "variance_scale must"),
    (lambda: sparse(variance_floor=float("nan")), ValueError, "variance_floor must"),
    (lambda: sparse(kernel="student", degrees=0.0), ValueError, "degrees must"),
    (lambda: sparse(nonsense=1), TypeError, "nonsense"),
    (lambda: sparse(values=TEXT), TypeError, "values must be"),
    (lambda: sparse(values=2**2000), ValueError, "values must be between -3.40282e+38 and 3.40282e+38; got 1148"),
    (lambda: sparse(values=float("inf")), ValueError, "values must be between -3.40282e+38 and 3.40282e+38; got inf"),
    (lambda: HyperLayer(lambda: PARTS, (5,), (4,), share_values=[0, 1, 2]).sample(), ValueError, "values must be at least 3, as share_values counts them; got 2"),
    # sources that are none, and those that read the input
    (lambda: HyperLayer(NONE, (5,), (4,)), TypeError, "source must be a module; got NoneType"),
    (lambda: HyperLayer(PARTS[0], (5,), (4,)), TypeError, "source must be a module; got Tensor"),
    (lambda: adaptive().wiring(), ValueError, READS),
    (lambda: adaptive().sample(), ValueError, READS),
    (lambda: adaptive().freeze(), TypeError, "freeze needs one wiring for every input; the source of this layer reads the input"),
    # inputs of the wrong rank, and sizes that are known with the input only
    (lambda: sparse((None,), (4,))(torch.ones(())), ValueError, SHAPE + "(None,) and 0 feature dimensions; got ()"),
    (lambda: sparse((None, 3), (4,))(torch.ones(2, 4)), ValueError, SHAPE + "(None, 3) and 0 feature dimensions; got (2, 4)"),
    (lambda: sparse((None, 3), (4,), features=1)(torch.ones(2, 3)), ValueError, SHAPE + "(None, 3) and 1 feature dimensions; got (2, 3)"),
    (lambda: sparse((5,), (4,), features=2)(torch.ones(5, 1)), ValueError, SHAPE + "(5,) and 2 feature dimensions; got (5, 1)"),
    (lambda: sparse((None,), (4,), region=(4, 7))(torch.ones(3, 6)), ValueError, "region[1] must be at most 6"),
    (lambda: sparse((None,), (4,)).wiring(), ValueError, OPEN),
    (lambda: sparse((None,), (4,)).sample(), ValueError, OPEN),
    (lambda: sparse((None,), (4,)).freeze(), ValueError, OPEN),
    *(
        (lambda bad=bad: sparse((None, 3), (4,)).freeze(in_shape=bad), ValueError, f"in_shape must be (None, 3), with a number for each None; got {bad}")
        for bad in ((2,), (2, 4), (2, 3, 1))
    ),
    # frozen layers
    (lambda: FrozenLayer((5,), (4,))(torch.ones(4)), ValueError, SHAPE + "(5,) and 0 feature dimensions; got (4,)"),
    (lambda: FrozenLayer((5,), (4,))(torch.ones(5, 2)), ValueError, SHAPE + "(5,) and 0 feature dimensions; got (5, 2)"),
    (lambda: FrozenLayer((5,), (4,))(torch.ones(())), ValueError, SHAPE + "(5,) and 0 feature dimensions; got ()"),
    (lambda: FrozenLayer((5,), (4,))(torch.ones(5).long()), TypeError, "x must have a floating-point dtype; got torch.int64"),
    (lambda: FrozenLayer((0,), (4,)), ValueError, "in_shape[0] must be at least 1; got 0"),
]  # fmt: skip


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("make", "error", "message"), REFUSED, ids=[b[2] for b in REFUSED])
def test_bad_layers_are_refused(make, error, message):
    with pytest.raises(error, match=re.escape(message)):
        make()


BAD_CALLS = [
    (lambda f: f(torch.ones(5, 3)), ValueError, SHAPE + "(5,) and 0 feature dimensions; got (5, 3)"),
    (lambda f: f(torch.ones(())), ValueError, SHAPE + "(5,) and 0 feature dimensions; got ()"),
    (lambda f: f(torch.ones(5).long()), TypeError, "x must have a floating-point dtype; got torch.int64"),
    (lambda f: f([1.0] * 5), TypeError, "x must be a tensor; got list"),
    (lambda f: f(torch.ones(5, device="meta")), ValueError, "x, layer must be on one device; got x on meta, layer on cpu"),
    (lambda f: f(torch.ones(5), mode="no"), ValueError, "mode must be one of 'rounded', 'sampled', 'expected', 'straight-through'; got 'no'"),
    (lambda f: f(torch.ones(5), generator=3), TypeError, "generator must be"),
    (lambda f: f.sample(mode="no"), ValueError, "mode must be one of 'rounded', 'sampled', 'expected', 'straight-through'; got 'no'"),
    (lambda f: f.sample(torch.ones(4)), ValueError, SHAPE + "(5,) and 0 feature dimensions; got (4,)"),
    (lambda f: f.wiring(torch.ones(4)), ValueError, SHAPE + "(5,) and 0 feature dimensions; got (4,)"),
]  # fmt: skip


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("call", "error", "message"), BAD_CALLS, ids=[b[2] for b in BAD_CALLS])
def test_bad_calls_are_refused_and_change_nothing(call, error, message):
    layer, x = sparse(seed=0, bias=True, wirings=2), torch.ones(3, 5)
    state, text, draws = copy.deepcopy(layer.state_dict()), repr(layer), torch.get_rng_state()
    expected = layer(x, generator=seeded(1))
    with pytest.raises(error, match=re.escape(message)):
        call(layer)
    assert_same(layer.state_dict(), state, rtol=0, atol=0)
    assert repr(layer) == text
    assert torch.equal(torch.get_rng_state(), draws)
    assert torch.equal(layer(x, generator=seeded(1)), expected)


@pytest.mark.usefixtures("unchecked")
def test_an_evaluation_that_is_set_later_is_checked_too():
    layer = sparse().eval()
    layer.evaluation = TEXT
    with pytest.raises(ValueError, match=r"evaluation must be one of 'rounded', .*; got 'text'"):
        layer(torch.ones(5))


@pytest.mark.usefixtures("unchecked")
def test_values_may_be_large_integers():
    assert sparse(values=2**70, learn_values=False).wiring().values.tolist() == [2.0**70] * 6
