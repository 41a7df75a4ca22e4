# ruff: noqa: E501  # a table, one bad state a line
"""States of frozen layers: what a file may hold, and that a bad one changes nothing."""

import copy
import io
import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers import assert_same, pairs
from tests.nn.dense import empty_like, input_for, of_every_kind, trained
from torch import nn

from sparsewire import FrozenLayer

# Good states.


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


@pairs(saved=[False, True], loaded=[False, True], assign=[False, True], full=[False, True])
def test_a_state_fits_whether_trainable_or_not(saved, loaded, assign, full):
    """The parameters remain the same objects, so that an optimizer finds them."""
    frozen = trained("free").double().freeze(trainable=saved)
    other = trained("lower").freeze(trainable=loaded) if full else empty_like(frozen, loaded)
    before, x = dict(other.named_parameters()), input_for(frozen, 3, dtype=torch.float64)
    other(x).sum().backward() if loaded else other(x)
    other.load_state_dict(frozen.state_dict(keep_vars=True), assign=assign)
    assert_same(other.state_dict(), frozen.state_dict(), rtol=0, atol=0)
    assert torch.equal(other(x), frozen(x))
    after = dict(other.named_parameters())
    assert set(after) == ({"values", "bias"} if loaded else set())
    assert all(type(parameter) is nn.Parameter for parameter in after.values())
    if loaded:
        assert assign or all(after[name] is parameter for name, parameter in before.items())
        other(x).sum().backward()
        optimizer = torch.optim.Adam(other.parameters())
        optimizer.step()
        assert not torch.equal(other(x), frozen(x))


# Bad states.

GOOD = {"rows": torch.tensor([0, 1, 3]), "cols": torch.tensor([4, 0, 2]), "values": torch.ones(3)}

INT64 = "must have dtype torch.int64; got torch."
LISTS = "rows, cols and values must be lists of one length; got rows "
KEYS = "state_dict must have the keys bias, cols, rows, values; got missing keys "

# A change to a good state (None takes an entry away), the error, and what it says.
BAD_STATES: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "row too large": ({"rows": torch.tensor([0, 1, 4])}, ValueError, "rows must lie in 0 … 3; got 0 … 4"),
    "col too large": ({"cols": torch.tensor([5, 0, 2])}, ValueError, "cols must lie in 0 … 4; got 0 … 5"),
    "col negative": ({"cols": torch.tensor([0, 0, -9])}, ValueError, "cols must lie in 0 … 4; got -9 … 0"),
    "few rows": ({"rows": torch.tensor([0])}, ValueError, LISTS + "(1,), cols (3,), values (3,)"),
    "few values": ({"values": torch.ones(2)}, ValueError, LISTS + "(3,), cols (3,), values (2,)"),
    "two dimensions": ({k: t.unsqueeze(1) for k, t in GOOD.items()}, ValueError, LISTS + "(3, 1)"),
    "no dimension": ({k: t[0] for k, t in GOOD.items()}, ValueError, LISTS + "()"),
    "rows of floats": ({"rows": torch.tensor([0.0, 1.0, 3.0])}, TypeError, "rows " + INT64 + "float32"),
    "short cols": ({"cols": torch.tensor([4, 0, 2]).int()}, TypeError, "cols " + INT64 + "int32"),
    "values of integers": ({"values": torch.ones(3).long()}, TypeError, "values must have a floating-point dtype; got torch.int64"),
    "complex values": ({"values": torch.ones(3) * 1j}, TypeError, "values must have a floating-point dtype; got torch.complex64"),
    "NaN": ({"values": torch.tensor([0.0, math.nan, 1.0])}, ValueError, "values must be finite; got 1 of 3 that are NaN or infinite"),
    "infinite bias": ({"bias": torch.tensor([0.0, 1.0, math.inf, -math.inf])}, ValueError, "bias must be finite; got 2 of 4 that are NaN or infinite"),
    "rows in a list": ({"rows": [0, 1, 3]}, TypeError, "rows must be a tensor; got list"),
    "values in an array": ({"values": np.ones(3)}, TypeError, "values must be a tensor; got ndarray"),
    "bias in words": ({"bias": "none"}, TypeError, "bias must be a tensor; got str"),
    "bias of another shape": ({"bias": torch.ones(4, 1)}, ValueError, "bias must have shape (4,); got (4, 1)"),
    "bias of integers": ({"bias": torch.ones(4).long()}, TypeError, "bias must have a floating-point dtype; got torch.int64"),
    "no values": ({"values": None}, ValueError, KEYS + "['values'] and unexpected keys []"),
    "no bias": ({"bias": None}, ValueError, KEYS + "['bias'] and unexpected keys []"),
    "unknown name": ({"weight": torch.ones(3)}, ValueError, KEYS + "[] and unexpected keys ['weight']"),
}  # fmt: skip


def changed(change: dict[str, Any]) -> dict[str, Any]:
    state = {**GOOD, "bias": torch.ones(4), **change}
    return {name: entry for name, entry in state.items() if entry is not None}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("trainable", [False, True])
@pytest.mark.parametrize("name", BAD_STATES)
def test_bad_states_are_refused_and_leave_the_layer_as_it_was(name, trainable):
    change, error, message = BAD_STATES[name]
    frozen = trained("free").freeze(trainable=trainable)
    before, expected = copy.deepcopy(frozen.state_dict()), frozen(input_for(frozen, 3))
    with pytest.raises(error, match=re.escape(message)):
        frozen.load_state_dict(changed(change))
    assert_same(frozen.state_dict(), before, rtol=0, atol=0)
    assert torch.equal(frozen(input_for(frozen, 3)), expected)


def test_a_state_of_other_shapes_leaves_the_layer_as_it_was():
    """Inside another module too, and named as it is there."""
    frozen, other = trained("free").freeze(), FrozenLayer((5,), (8,), bias=True)
    before = copy.deepcopy(frozen.state_dict())
    message = "in_shape (5,) and out_shape (4,); got in_shape (5,) and out_shape (8,)"
    with pytest.raises(ValueError, match=re.escape(message)):
        frozen.load_state_dict(other.state_dict())
    state = {f"0.{key}": entry for key, entry in changed({"bias": torch.ones(3)}).items()}
    with pytest.raises(ValueError, match=r"^0\.bias must have shape \(4,\); got \(3,\)"):
        nn.Sequential(frozen).load_state_dict(state)
    assert_same(frozen.state_dict(), before, rtol=0, atol=0)


def test_part_of_a_state_is_loaded_where_that_is_asked_for():
    """`strict=False`; but rows, columns and values make sense together only."""
    frozen = trained("free").freeze()
    before = copy.deepcopy(frozen.state_dict())
    with pytest.raises(ValueError, match="must come together; got rows, cols alone"):
        frozen.load_state_dict(changed({"values": None}), strict=False)
    assert_same(frozen.state_dict(), before, rtol=0, atol=0)
    frozen.load_state_dict({"bias": torch.ones(4)}, strict=False)
    assert_same(frozen.state_dict(), {**before, "bias": torch.ones(4)}, rtol=0, atol=0)
    frozen.load_state_dict(GOOD, strict=False)
    assert_same(frozen.state_dict(), {**GOOD, "bias": torch.ones(4)}, rtol=0, atol=0)


def test_a_state_in_another_order_means_the_same():
    """The coordinate form promises order and no repeats, whatever a file holds."""
    frozen = FrozenLayer((5,), (4,))
    rows, cols, values = torch.tensor([[3, 0, 1, 1], [2, 4, 0, 0], [1, 2, 3, 4]])
    frozen.load_state_dict({"rows": rows, "cols": cols, "values": values.float()})
    assert frozen.indices.tolist() == [[0, 4], [1, 0], [3, 2]]
    assert frozen.values.tolist() == [2.0, 7.0, 1.0]
