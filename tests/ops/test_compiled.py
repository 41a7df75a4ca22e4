"""The compiled engine of `spread`, against the reference; compiling is slow, so kinds are few."""

from typing import Any

import pytest
import torch
from tests.helpers import (
    LargestStorage,
    assert_same,
    by_engine,
    output_and_gradients,
    random_indices,
    seeded,
)
from torch import Tensor
from torch._dynamo.utils import counters
from torch._inductor import config
from torch._inductor.utils import fresh_cache

from sparsewire.ops import mark_repeats, spread, spread_reference
from sparsewire.ops.density import DEGREES, Kind, tame
from sparsewire.ops.spread import _compiled
from sparsewire.ops.spread._compiled import CompiledSpread

# Two kinds of code for each direction are compiled, once for the file: together they have both
# densities, both dtypes and both ways to compute an exponential.
FLOAT, DOUBLE = ("gaussian", torch.float32), ("student", torch.float64)
kinds = pytest.mark.parametrize(("density", "dtype"), [FLOAT, DOUBLE], ids=str)

# c, k, m: the ordinary, ones of everything, primes, columns that fill no vector or many.
SIZES = [(1, 31, 64), (1, 1, 1), (3, 1, 7), (3, 7, 1), (1, 1, 61), (5, 13, 61), (2, 3, 5003)]


spread_chunked = by_engine("chunked", spread)


def spread_compiled(
    means: Tensor,
    variances: Tensor,
    values: Tensor,
    indices: Tensor,
    excluded: Tensor | None = None,
    density: Any = "gaussian",
    degrees: Any = 1.0,
) -> Tensor:
    kind = Kind(density, degrees, means.shape[-1])
    return CompiledSpread.apply(*tame(means, variances), values, indices, excluded, kind)


def case(
    c: int,
    k: int,
    m: int,
    r: int = 2,
    repeats: bool = True,
    dtype: torch.dtype = torch.float64,
    density: str = "student",
    **options: Any,
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Continuous tuples, and the fixed arguments: integer tuples on a 9^r grid, their repeats."""
    means, variances = torch.rand(2, c, k, r, dtype=torch.float64, generator=seeded(0))
    values = torch.randn(c, k, dtype=torch.float64, generator=seeded(1))
    leaves = {"means": means * 8, "variances": variances * 4 + 0.1, "values": values}
    indices = random_indices((c,), m, (9,) * r)
    excluded = mark_repeats(indices, (9,) * r) if repeats else None
    fixed = {"indices": indices, "excluded": excluded, "density": density, **options}
    return {name: tensor.to(dtype) for name, tensor in leaves.items()}, fixed


def run(engine: Any, leaves: dict[str, Tensor], fixed: dict[str, Any]) -> dict[str, Tensor]:
    return output_and_gradients(lambda **inputs: engine(**inputs, **fixed), leaves)


def exact(leaves: dict[str, Tensor], fixed: dict[str, Any]) -> dict[str, Tensor]:
    """What the reference finds in float64, in the precision of the inputs."""
    wide = {name: tensor.double() for name, tensor in leaves.items()}
    found = run(spread_reference, wide, fixed)
    return {name: tensor.to(leaves["means"].dtype) for name, tensor in found.items()}


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> set[Any]:
    """What could not be compiled, in this test alone; skip where nothing can be."""
    if not _compiled.available():
        pytest.skip("nothing can be compiled here: no C++ compiler that works")
    monkeypatch.setattr(_compiled, "_broken", set())
    return _compiled._broken


def close(dtype: torch.dtype) -> dict[str, float]:
    return {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-11}


# The same results.


@kinds
def test_one_compilation_equals_the_reference_at_every_size(broken, density, dtype):
    run(spread_compiled, *case(2, 3, 5, dtype=dtype, density=density))
    before = counters["stats"]["unique_graphs"]
    for c, k, m in SIZES:
        for repeats in (False, True):
            leaves, fixed = case(c, k, m, 2, repeats, dtype, density=density, degrees=1.5)
            assert_same(run(spread_compiled, leaves, fixed), exact(leaves, fixed), **close(dtype))
    assert counters["stats"]["unique_graphs"] == before
    assert not broken


@pytest.mark.parametrize("pairs", [1, 150, 1000], ids=["row by row", "parts", "a few together"])
def test_parts_add_up(broken, monkeypatch, pairs):
    monkeypatch.setattr(_compiled, "_CHUNK_PAIRS", pairs)
    leaves, fixed = case(5, 7, 61)
    assert_same(run(spread_compiled, leaves, fixed), exact(leaves, fixed))
    assert not broken


# However far.


@kinds
def test_absurd_inputs(broken, density, dtype):
    """Magnitudes mixed at random: all far, all hidden, ties, far and near in one row."""
    generator, magnitudes = seeded(0), torch.tensor([1e-30, 1e-10, 1, 1e3, 1e10, 1e30])
    for seed in range(60):
        means, variances = magnitudes[torch.randint(6, (2, 1, 3, 2), generator=generator)].to(dtype)
        means *= torch.randint(-1, 2, means.shape, generator=generator)
        leaves = {"means": means, "variances": variances, "values": torch.ones(1, 3, dtype=dtype)}
        indices = random_indices((1,), 4, (2**24, 9), seed)
        excluded = torch.rand(1, 4, generator=generator) < seed % 5 / 4
        fixed = {"indices": indices, "excluded": excluded, "density": density}
        got = run(spread_compiled, leaves, fixed)
        for name, tensor in got.items():
            assert tensor.isfinite().all(), name
        want = spread_chunked(**leaves, **fixed)
        torch.testing.assert_close(got["output"], want, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(got["output"].sum(), want.new_tensor(0 if excluded.all() else 3))
    assert not broken


@kinds
def test_beyond_the_farthest_gradients_are_zero(broken, density, dtype):
    leaves, fixed = case(1, 3, 9, dtype=dtype, density=density)
    leaves["means"][0, 0] = 1e200 if dtype == torch.float64 else 1e30
    leaves["variances"][0, 0] = 1e-30
    got = run(spread_compiled, leaves, fixed)
    for name in ("gradient of means", "gradient of variances"):
        assert (got[name][0, 0] == 0).all(), name
        assert (got[name][0, 1:] != 0).any(), name
    assert not broken


@pytest.mark.parametrize("degrees", [DEGREES[0], 1e-3, 1e3, DEGREES[1]])
def test_every_degree_of_freedom(broken, degrees):
    leaves, fixed = case(1, 5, 30, degrees=degrees)
    assert_same(run(spread_compiled, leaves, fixed), exact(leaves, fixed), **close(torch.float64))
    leaves["means"][0, 0], leaves["variances"][0, 0] = 1e30, 1e-30
    leaves["means"][0, 1] = fixed["indices"][0, 0]
    got = run(spread_compiled, leaves, fixed)
    for name, tensor in got.items():
        assert tensor.isfinite().all(), name
    torch.testing.assert_close(got["output"].sum(), leaves["values"].sum())
    assert not broken


def test_exponentials_in_plain_arithmetic():
    x = torch.cat([-torch.rand(10_000, generator=seeded(0)) * 87, torch.tensor([0.0, -87.3])])
    kind = Kind("gaussian", 1.0, 2)
    got = _compiled._exp(x, kind).double()
    torch.testing.assert_close(got, x.double().exp(), rtol=2e-7, atol=0)
    far = torch.tensor([-88.0, -1e18, torch.finfo(torch.float32).min])
    assert (_compiled._exp(far, kind) == 0).all()
    assert _compiled._exp(torch.zeros(()), kind) == 1


# Memory, surroundings.


@pytest.mark.parametrize(("kind", "r"), [(FLOAT, 2), (DOUBLE, 2), (FLOAT, 1)], ids=str)
def test_nothing_as_large_as_a_table_is_made(broken, monkeypatch, kind, r):
    """Not even where chunks do not bound it, from torch 2.13 on: its loops keep no pairs."""
    monkeypatch.setattr(_compiled, "_CHUNK_PAIRS", 2**40 if torch.__version__ >= "2.13" else 2**17)
    k, m = 256, 4096
    density, dtype = kind
    leaves, fixed = case(1, k, m, r, dtype=dtype, density=density)
    got = run(spread_compiled, leaves, fixed)
    assert_same(got, exact(leaves, fixed), **close(dtype))
    with torch.profiler.profile(profile_memory=True, acc_events=True) as profiled:
        run(spread_compiled, leaves, fixed)
    profiler: Any = profiled.profiler
    events = profiler.kineto_results.events()
    sizes = [event.nbytes() for event in events if event.name() == "[memory]"]
    assert 4 * r * m <= max(sizes) < k * m
    assert not broken


def test_functional_transforms(broken):
    leaves, fixed = case(2, 3, 5)
    means = leaves.pop("means")

    def total(means: Tensor) -> Tensor:
        return spread_compiled(means, **leaves, **fixed).square().sum()

    got = torch.func.grad(total)(means)
    (want,) = torch.autograd.grad(total(means.requires_grad_()), means)
    torch.testing.assert_close(got, want)
    assert not broken


def test_dispatch_modes_get_the_chunked_engine_and_change_nothing(broken):
    leaves, fixed = case(1, 31, 64)
    before = run(spread_compiled, leaves, fixed)
    with LargestStorage():
        assert not _compiled.available()
        inside = run(spread_compiled, leaves, fixed)
    assert_same(inside, run(spread_chunked, leaves, fixed), rtol=0, atol=0)
    assert _compiled.available()
    assert_same(run(spread_compiled, leaves, fixed), before, rtol=0, atol=0)
    assert not broken


# Where compiling fails.


def fails(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("no")


def test_what_cannot_be_compiled_is_chunked(broken, monkeypatch):
    leaves, fixed = case(2, 7, 61, r=3)
    compilations = []
    monkeypatch.setattr(torch, "compile", lambda *a, **k: compilations.append(a) or fails())
    for _ in range(2):
        got = run(spread_compiled, leaves, fixed)
        assert_same(got, run(spread_chunked, leaves, fixed), rtol=0, atol=0)
    assert len(compilations) == len(broken) == 1


def test_a_backward_pass_that_cannot_be_compiled_is_chunked(broken, monkeypatch):
    leaves, fixed = case(2, 7, 61)
    compiled = _compiled._compiled

    def only_forward(function: Any, *key: Any) -> Any:
        return fails() if function is _compiled._backward else compiled(function, *key)

    monkeypatch.setattr(_compiled, "_compiled", only_forward)
    assert_same(run(spread_compiled, leaves, fixed), run(spread_chunked, leaves, fixed))
    assert len(broken) == 1


def test_without_a_compiler_nothing_is_tried(monkeypatch):
    monkeypatch.setattr(_compiled, "has_compiler", lambda: False)
    monkeypatch.setattr(_compiled, "_works", fails)
    assert not _compiled.available()


# Last, for all that is called afterwards must be compiled again.


def test_the_first_call_leaves_no_trace(broken):
    """Code made for another size, in another state, gives the same bits."""
    leaves, fixed = case(1, 31, 64)
    first = run(spread_compiled, leaves, fixed)
    torch._dynamo.reset()
    other, others = case(3, 7, 1)
    with torch.inference_mode():
        spread_compiled(**other, **others)
    assert_same(run(spread_compiled, leaves, fixed), first, rtol=0, atol=0)
    assert not broken


@pytest.mark.usefixtures("broken")
def test_a_compiler_that_does_not_work_is_found_out_in_silence(capfd, monkeypatch):
    """Warnings are errors here."""
    leaves, fixed = case(1, 5, 7, r=3)
    monkeypatch.setattr(_compiled, "_works", _compiled._works.__wrapped__)
    torch._dynamo.reset()
    with config.patch({"cpp.cxx": ("false",)}), fresh_cache():
        assert not _compiled.available()
        got = run(spread_compiled, leaves, fixed)
    assert_same(got, run(spread_chunked, leaves, fixed), rtol=0, atol=0)
    assert capfd.readouterr() == ("", "")
