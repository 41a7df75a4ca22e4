"""Every engine that runs on the CPU computes its function from all arguments."""

import importlib
import inspect
import pkgutil
from typing import Any

import pytest
from tests.agreement import CASES, assert_agreement, parameters
from tests.helpers import pairwise

from sparsewire import ops
from sparsewire.ops.spread import _chunked

contraction = importlib.import_module("sparsewire.ops.contract")

FUNCTIONS = pytest.mark.parametrize("name", CASES)


def home(function: Any) -> str:
    return inspect.unwrap(function).__module__


def tables() -> dict[str, set[str]]:
    """The names of the engines in the table of each stage."""
    found = pkgutil.iter_modules(ops.__path__, "sparsewire.ops.")
    modules = [importlib.import_module(m.name) for m in found if "._" not in m.name]
    return {m.__name__: {e.name for e in m.ENGINES} for m in modules if hasattr(m, "ENGINES")}


def test_every_function_with_engines_has_a_case():
    assert {home(case.function) for case in CASES.values()} == tables().keys()
    dispatching = {
        name
        for name in ops.__all__
        if "dispatch" in inspect.unwrap(getattr(ops, name)).__code__.co_names
    }
    assert dispatching <= CASES.keys()
    for engines in tables().values():
        assert {"triton", "reference"} <= engines


@FUNCTIONS
def test_every_argument_has_an_axis(name):
    """A new argument, too, must be compared."""
    case = CASES[name]
    assert parameters(case.function) == case.axes.keys() - set(case.extra)
    assert all(len(values) > 1 for values in case.axes.values())


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        (name, engine)
        for name, case in CASES.items()
        for engine in sorted({"auto", *tables()[home(case.function)]} - {"triton"})
    ],
)
def test_engines_agree_with_the_specification(name, engine):
    for row in CASES[name].rows():
        assert_agreement(name, row, engine)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        *(("spread", size) for size in (1, 150, 5_000)),  # a row, part of a context, a few
        *(("contract_flat", size) for size in (64, 2**40)),  # a few tuples, all
    ],
)
def test_chunks_of_every_size_agree_with_the_specification(name, size, monkeypatch):
    monkeypatch.setitem(_chunked._CHUNK_PAIRS, "cpu", size)
    monkeypatch.setattr(contraction, "_CHUNK_ELEMENTS", size)
    monkeypatch.setattr(contraction, "_SMALL_ELEMENTS", -1)
    for row in CASES[name].rows():
        assert_agreement(name, row, "chunked")


def test_pairwise_covers_all_pairs():
    axes = {"a": [1, 2], "b": "xyz", "c": [None, True, 3.5], "d": "pq"}
    rows = pairwise(**axes)
    assert len(rows) < 2 * 3 * 3 * 2 / 2
    for first, second in (("a", "b"), ("b", "c"), ("a", "d"), ("c", "d")):
        met = {(row[first], row[second]) for row in rows}
        assert met == {(i, j) for i in axes[first] for j in axes[second]}
