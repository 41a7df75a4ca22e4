"""Frozen layers: the map of the layer in evaluation, as plain tensors, in files and exported."""

import copy
import io
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers import DTYPES, assert_same, pairs
from tests.nn.dense import (
    KINDS,
    apply_dense,
    input_for,
    matrix_of,
    random_input,
    randomise,
    set_raw,
)
from torch import nn

from sparsewire import FrozenLayer, HyperLayer, SparseLayer

of_every_kind = pytest.mark.parametrize("kind", KINDS)


def trained(kind: str, **options: Any) -> HyperLayer:
    return randomise(KINDS[kind](bias=True, **options).eval())


def empty_like(frozen: FrozenLayer) -> FrozenLayer:
    """A layer of the same shapes with nothing in it."""
    options = {"bias": frozen.bias is not None, "features": frozen.features}
    return FrozenLayer(frozen.in_shape, frozen.out_shape, **options)


# The same map.


@pairs(
    kind=list(KINDS),
    prefix=[(), (3,), (2, 3), (0,)],
    features=[0, 1, 2],
    dtype=DTYPES,
    converted=[False, True],
)
def test_equals_the_layer_in_evaluation(kind, prefix, features, dtype, converted):
    """Values that meet are added in advance, and rounded to the dtype of the layer."""
    layer = trained(kind, features=features)
    layer = layer.to(dtype) if converted else layer
    x = input_for(layer, *prefix, dtype=dtype)
    frozen, tolerance = layer.freeze(), max(4 * torch.finfo(dtype).eps, 1e-5)
    y = frozen(x)
    assert y.dtype == dtype
    assert frozen.values.dtype == (dtype if converted else torch.float32)
    torch.testing.assert_close(y, layer(x), rtol=tolerance, atol=tolerance)


@of_every_kind
def test_all_forms_agree_with_the_forward_pass(kind):
    """Its elements are in order, without repeats or zeros."""
    frozen = trained(kind).freeze()
    frozen.bias = None
    matrix = matrix_of(frozen)
    shape = (*frozen.out_shape, *frozen.in_shape)
    assert frozen.coo().shape == frozen.dense().shape == shape
    assert frozen.coo().is_coalesced()
    torch.testing.assert_close(frozen.dense().reshape(matrix.shape), matrix)
    torch.testing.assert_close(frozen.coo().to_dense(), frozen.dense())
    assert frozen.csr().layout == torch.sparse_csr
    torch.testing.assert_close(frozen.csr().to_dense(), matrix)
    torch.testing.assert_close(frozen.dense()[tuple(frozen.indices.T)], frozen.values)
    flat = frozen.rows * input_for(frozen).numel() + frozen.cols
    assert (flat.diff() > 0).all()
    assert frozen.values.all()
    assert 0 < len(flat) <= matrix.numel()


def test_values_that_meet_are_added_and_those_that_cancel_dropped():
    layer = SparseLayer((5,), (3,), tuples=5, edge="clamp")
    places = [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.5, 0.5], [0.5, 0.5]]
    set_raw(layer, places, values=[1.0, 2.0, 3.0, 4.0, -4.0])
    frozen = layer.freeze()
    assert frozen.rows.tolist() == [0, 2]
    assert frozen.cols.tolist() == [4, 0]
    assert frozen.values.tolist() == [5.0, 1.0]
    assert frozen.indices.tolist() == [[0, 4], [2, 0]]


@pytest.mark.parametrize(("in_shape", "out_shape"), [((), (4,)), ((4,), ())], ids=str)
def test_a_single_number_in_or_out(in_shape, out_shape):
    layer = SparseLayer(in_shape, out_shape, tuples=3, seed=0).eval()
    frozen, x = layer.freeze(), input_for(layer, 2)
    torch.testing.assert_close(frozen(x), layer(x))
    torch.testing.assert_close(frozen(x), apply_dense(frozen.dense(), x, len(out_shape)))


def test_freezing_takes_a_snapshot_with_gradients_for_the_input_alone():
    layer = trained("free")
    assert not layer.freeze().training
    frozen, x = layer.train().freeze(), input_for(layer, 3)
    assert frozen.training
    expected = layer(x, mode="rounded").detach()
    assert layer.training
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
    torch.testing.assert_close(frozen(x), expected)
    assert list(frozen.parameters()) == []
    assert not frozen(x).requires_grad
    assert not any(buffer.requires_grad for buffer in frozen.buffers())
    frozen(x.requires_grad_()).sum().backward()
    torch.testing.assert_close(x.grad, frozen.dense().sum(0).expand(3, 5))


def test_sizes_left_open_are_settled():
    layer = SparseLayer((None, 3), (4,), tuples=6, seed=0).eval()
    for size in (2, 7):
        x = random_input(5, size, 3, dtype=torch.float32)
        frozen = layer.freeze(in_shape=(size, 3))
        assert frozen.in_shape == (size, 3)
        torch.testing.assert_close(frozen(x), layer(x))


# Copies and files.


@of_every_kind
def test_the_state_fits_an_empty_layer(kind):
    frozen = trained(kind).freeze()
    file = io.BytesIO()
    torch.save(frozen.state_dict(), file)
    file.seek(0)
    other = empty_like(frozen)
    x = input_for(frozen, 3)
    assert other(x).count_nonzero() == 0
    other.load_state_dict(torch.load(file, weights_only=True))
    assert_same(other.state_dict(), frozen.state_dict(), rtol=0, atol=0)
    assert torch.equal(other(x), frozen(x))


def test_a_state_may_be_assigned_and_fits_inside_other_modules():
    frozen = trained("free").double().freeze()
    outer, empty = nn.Sequential(frozen), nn.Sequential(empty_like(frozen))
    x = input_for(frozen, 3, dtype=torch.float64)
    for options in ({}, {"assign": True}):
        empty.load_state_dict(outer.state_dict(), **options)
        assert torch.equal(empty(x), frozen(x))
    message = "in_shape (5,) and out_shape (8,); got in_shape (5,) and out_shape (4,)"
    with pytest.raises(ValueError, match=re.escape(message)):
        FrozenLayer((5,), (8,), bias=True).load_state_dict(frozen.state_dict())


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda f: pickle.loads(pickle.dumps(f))])
def test_copies_are_equal(copied):
    frozen = trained("convolution").freeze()
    x = input_for(frozen, 3)
    assert torch.equal(copied(frozen)(x), frozen(x))


def test_the_repr_says_what_matters():
    shapes = r"in_shape=\(5,\), out_shape=\(4,\)"
    text = repr(trained("free").freeze())
    assert re.match(rf"FrozenLayer\({shapes}, nonzero=\d, bias=True\)", text)


GOOD = {"rows": torch.tensor([0, 1, 3]), "cols": torch.tensor([4, 0, 2]), "values": torch.ones(3)}

# Refused by the layer, before anything is loaded.
BAD_STATES: dict[str, tuple[dict[str, Any], str]] = {
    "row too large": ({"rows": torch.tensor([0, 1, 4])}, "rows must lie in 0 … 3; got 0 … 4"),
    "col negative": ({"cols": torch.tensor([0, 0, -9])}, "cols must lie in 0 … 4; got -9 … 0"),
    "few values": ({"values": torch.ones(2)}, "rows, cols and values must .* one length"),
    "two dimensions": ({k: t.unsqueeze(1) for k, t in GOOD.items()}, "rows"),
    "no dimension": ({k: t[0] for k, t in GOOD.items()}, "rows"),
    "rows of floats": ({"rows": torch.tensor([0.0, 1.0, 3.0])}, "rows must"),
    "values of integers": ({"values": torch.ones(3).long()}, "values must"),
}


# Refused by `load_state_dict` itself, or not at all where it is not strict.
PARTIAL_STATES: dict[str, tuple[dict[str, Any], str]] = {
    "rows in a list": ({"rows": [0, 1, 3]}, "rows"),
    "no values": ({"values": None}, "values"),
    "bias of another shape": ({"bias": torch.ones(4, 1)}, "bias"),
    "unknown name": ({"weight": torch.ones(3)}, "weight"),
}


def changed(change: dict[str, Any]) -> dict[str, Any]:
    """A good state with a change; None takes an entry away."""
    state = {**GOOD, "bias": torch.ones(4), **change}
    return {name: entry for name, entry in state.items() if entry is not None}


@pytest.mark.parametrize("name", BAD_STATES)
def test_bad_states_are_refused_and_leave_the_layer_as_it_was(name):
    change, message = BAD_STATES[name]
    frozen = trained("free").freeze()
    before, expected = copy.deepcopy(frozen.state_dict()), frozen(input_for(frozen, 3))
    with pytest.raises((ValueError, TypeError), match=message):
        frozen.load_state_dict(changed(change))
    assert_same(frozen.state_dict(), before, rtol=0, atol=0)
    assert torch.equal(frozen(input_for(frozen, 3)), expected)


@pytest.mark.parametrize("name", PARTIAL_STATES)
def test_part_of_a_state_leaves_a_layer_that_works(name):
    change, message = PARTIAL_STATES[name]
    frozen = trained("free").freeze()
    with pytest.raises((ValueError, TypeError, RuntimeError), match=message):
        frozen.load_state_dict(changed(change))
    assert len(frozen.rows) == len(frozen.cols) == len(frozen.values)
    assert frozen(input_for(frozen, 3)).isfinite().all()


def test_a_state_in_another_order_means_the_same():
    """The coordinate form promises order and no repeats, whatever a file holds."""
    frozen = FrozenLayer((5,), (4,))
    rows, cols, values = torch.tensor([[3, 0, 1, 1], [2, 4, 0, 0], [1, 2, 3, 4]])
    frozen.load_state_dict({"rows": rows, "cols": cols, "values": values.float()})
    assert frozen.indices.tolist() == [[0, 4], [1, 0], [3, 2]]
    assert frozen.values.tolist() == [2.0, 7.0, 1.0]


# Export.


def exported(frozen: FrozenLayer) -> dict[str, Any]:
    """Arguments of the exporters: an example, and a batch of any size."""
    return {"args": (input_for(frozen, 3),), "dynamic_shapes": {"x": {0: torch.export.Dim("b")}}}


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")  # torch 2.11 loading
@pytest.mark.parametrize("kind", ["free", "high rank", "template", "convolution"])
def test_an_exported_program_gives_the_same_for_any_batch(kind):
    frozen = trained(kind, features=1 if kind == "template" else 0).freeze().eval()
    file = io.BytesIO()
    torch.export.save(torch.export.export(frozen, **exported(frozen)), file)
    file.seek(0)
    program = torch.export.load(file).module()
    for batch in (1, 3, 8):
        x = input_for(frozen, batch)
        torch.testing.assert_close(program(x), frozen(x))


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_onnx_gives_the_same_for_any_batch(tmp_path: Path):
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package)
    runtime = pytest.importorskip("onnxruntime")
    frozen = trained("high rank").freeze().eval()
    program = torch.onnx.export(frozen, dynamo=True, verbose=False, **exported(frozen))
    assert program is not None
    program.save(tmp_path / "frozen.onnx")
    session = runtime.InferenceSession(tmp_path / "frozen.onnx", providers=["CPUExecutionProvider"])
    (entry,) = session.get_inputs()
    for batch in (1, 3, 8):
        x = input_for(frozen, batch)
        (y,) = session.run(None, {entry.name: x.numpy()})
        torch.testing.assert_close(torch.from_numpy(y), frozen(x))
