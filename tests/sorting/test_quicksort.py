"""The layer that sorts step by step: its half-permutations, their targets and their gradient."""

import math
import re
from typing import Any

import pytest
import torch
from tests.helpers import pairs, seeded
from tests.sorting.loops import half_by_loop
from torch import Tensor
from torch.autograd import gradcheck

from sparsewire import QuickSort

METHODS = ("exact", "sampled")
SIZES = [1, 2, 3, 4, 5, 7, 8, 13, 16]

methods = pytest.mark.parametrize("method", METHODS)
sizes = pytest.mark.parametrize("n", SIZES)


def shuffled(n: int, *batch: int, seed: int = 0) -> Tensor:
    """The numbers 0 … n - 1 in another order for each of a batch."""
    return torch.rand(*batch, n, generator=seeded(seed)).argsort(-1).double()


def halves_by_loop(keys: Tensor, temperature: float, distribution: str) -> list[Tensor]:
    """Bucket by bucket, of as many keys as a power of two; the mixed keys decide further."""
    found, size = [], len(keys)
    while size > 1:
        parts = [
            half_by_loop(part.tolist(), temperature, distribution) for part in keys.split(size)
        ]
        found.append(torch.block_diag(*parts))
        keys = found[-1] @ keys
        size //= 2
    return found


# What it sorts.


@pairs(
    method=METHODS,
    n=SIZES,
    distribution=["logistic", "student"],
    features=[(), (1,), (3,), (2, 3)],
)
def test_payloads_of_any_shape_come_in_the_order_of_keys_far_apart(
    method, n, distribution, features
):
    keys, payload = shuffled(n, 2), torch.randn(2, n, *features, dtype=torch.float64)
    got = QuickSort(method, temperature=1e-6, distribution=distribution)(keys, payload)
    assert got.shape == payload.shape
    for things, order, its in zip(payload, keys.argsort(-1), got, strict=True):
        torch.testing.assert_close(its, things[order])


@methods
@sizes
def test_in_evaluation_nothing_is_mixed(method, n):
    keys = torch.randn(3, n).requires_grad_()
    payload = torch.randn(3, n, 2)
    layer = QuickSort(method, temperature=100.0).eval()
    order = keys.argsort(dim=-1, stable=True)
    assert torch.equal(layer(keys, payload), payload.gather(1, order[..., None].expand(3, n, 2)))
    assert torch.equal(layer(keys, keys), keys.sort(-1).values)
    if n > 1:
        assert not torch.equal(layer.train()(keys, keys), keys.sort(-1).values)


def test_equal_keys_stay_in_their_order_in_evaluation():
    keys = torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0])
    got = QuickSort().eval()(keys, torch.arange(5.0))
    assert got.tolist() == [1, 3, 0, 2, 4]


@methods
@pytest.mark.parametrize("mode", [True, False])
def test_results_keep_the_dtype_of_the_things(method, mode):
    layer = QuickSort(method).train(mode)
    for dtype in (torch.float16, torch.float32, torch.float64):
        for kind in (torch.bfloat16, torch.float32, torch.float64):
            assert layer(torch.randn(4).to(kind), torch.randn(4).to(dtype)).dtype == dtype


@methods
@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 4), (0, 3, 5)])
@pytest.mark.parametrize("mode", [True, False])
def test_nothing_at_all_can_be_sorted(method, shape, mode):
    payload = torch.zeros(*shape, 2)
    assert QuickSort(method).train(mode)(torch.zeros(shape), payload).shape == payload.shape


@methods
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e10, 1e20])
def test_large_keys_are_sorted_as_well(method, scale):
    """What fills them up to a power of two must lie above them."""
    keys = torch.tensor([3.0, 1.0, 2.0]) * scale
    got = QuickSort(method, temperature=1e-5)(keys, torch.tensor([3.0, 1.0, 2.0]))
    torch.testing.assert_close(got, torch.tensor([1.0, 2.0, 3.0]))


# Half-permutations.


@pairs(
    method=METHODS,
    n=[2, 4, 8],
    keys=["apart", "tied", "equal"],
    temperature=[0.1, 1.0],
    distribution=["logistic", "cauchy"],
)
def test_halves_equal_a_loop_over_all_valid_vectors(method, n, keys, temperature, distribution):
    """Enough samples have all vectors among them; keys equal to the median are in doubt."""
    apart = torch.randn(2, n, dtype=torch.float64)
    keys = {"apart": apart, "tied": apart.round(), "equal": torch.ones_like(apart)}[keys]
    layer = QuickSort(method, samples=2000, temperature=temperature, distribution=distribution)
    got = layer.halves(keys, generator=seeded(0))
    for number, one in enumerate(keys):
        want = halves_by_loop(one, temperature, distribution)
        assert len(want) == len(got)
        for ours, theirs in zip(got, want, strict=True):
            torch.testing.assert_close(ours[number], theirs)


@methods
@sizes
@pytest.mark.parametrize("equal", [False, True])
def test_halves_are_doubly_stochastic(method, n, equal):
    """Also where keys are filled up: what was added stays apart."""
    ones = torch.ones(2, 3, n, dtype=torch.float64)
    keys = ones if equal else torch.randn_like(ones)
    halves = QuickSort(method, temperature=0.5).halves(keys, generator=seeded(0))
    assert len(halves) == math.ceil(math.log2(n))
    for matrix in halves:
        assert matrix.shape == (2, 3, n, n)
        assert (matrix >= 0).all()
        torch.testing.assert_close(matrix.sum(-1), ones)
        torch.testing.assert_close(matrix.sum(-2), ones)


def test_no_samples_are_a_hard_step():
    keys = torch.randn(8)
    for matrix in QuickSort("sampled", samples=0, temperature=5.0).halves(keys):
        assert torch.equal(matrix.amax(-1), torch.ones(8))
        assert matrix.count_nonzero() == 8


# Steps.


@methods
@sizes
def test_values_are_the_halves_applied_and_targets_their_transposes(method, n):
    keys, payload = torch.randn(2, n).double(), torch.randn(2, n, 2, 2).double()
    target = torch.randn_like(payload)
    layer = QuickSort(method, temperature=0.5)
    assert layer.steps(keys, payload, generator=seeded(0)).targets == []
    values, targets, halves = layer.steps(keys, payload, target, generator=seeded(0))
    assert len(targets) == len(values) == len(halves) + 1
    assert torch.equal(values[0], payload)
    assert torch.equal(targets[-1], target)
    for step, matrix in enumerate(halves):
        before, after = (values[i].flatten(-2) for i in (step, step + 1))
        torch.testing.assert_close(after, matrix @ before)
        before, after = (targets[i].flatten(-2) for i in (step, step + 1))
        torch.testing.assert_close(before, matrix.mT @ after)
    assert torch.equal(layer(keys, payload, generator=seeded(0)), values[-1])


@methods
def test_right_keys_bring_values_to_their_targets_at_every_step(method):
    keys = shuffled(8, 3)
    steps = QuickSort(method, temperature=1e-3).steps(keys, keys, keys.sort(-1).values)
    assert len(steps.values) == 4
    for value, target in zip(steps.values, steps.targets, strict=True):
        torch.testing.assert_close(value, target)


def test_there_are_steps_in_evaluation_too():
    keys = torch.randn(4)
    layer = QuickSort()
    soft = layer.steps(keys, keys).values[-1]
    assert torch.equal(layer.eval().steps(keys, keys).values[-1], soft)


# Gradients.


@pytest.mark.parametrize(
    ("method", "n", "distribution"),
    [
        ("exact", 1, "student"),
        ("exact", 3, "logistic"),
        ("exact", 4, "cauchy"),
        ("exact", 6, "student"),
        ("sampled", 4, "logistic"),
    ],
)
def test_gradients_of_steps(method, n, distribution):
    layer = QuickSort(method, temperature=1.0, distribution=distribution)
    keys = torch.randn(2, n, dtype=torch.float64, requires_grad=True)
    payload = torch.randn(2, n, 2, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda k, p: layer(k, p, generator=seeded(0)), (keys, payload))


@methods
@pytest.mark.parametrize("n", [5, 8])
def test_gradients_reach_every_key(method, n):
    keys, payload = torch.randn(3, n, requires_grad=True), torch.randn(3, n, 4)
    layer = QuickSort(method, temperature=1.0, samples=200)
    steps = layer.steps(keys, payload, torch.randn(3, n, 4), generator=seeded(0))
    loss = sum((v - t).square().sum() for v, t in zip(steps.values, steps.targets, strict=True))
    (gradient,) = torch.autograd.grad(torch.as_tensor(loss), keys)
    assert gradient.isfinite().all()
    assert (gradient != 0).all()


@methods
def test_gradients_of_equal_and_of_distant_keys_are_finite(method):
    keys = torch.tensor([[1.0] * 5, [1e6, -1e6, 0.0, 0.0, 1e6]], requires_grad=True)
    QuickSort(method)(keys, torch.randn(2, 5)).square().sum().backward()
    assert keys.grad is not None
    assert keys.grad.isfinite().all()


def test_wrong_keys_learn_their_order():
    target = torch.arange(6.0)
    payload = target[[3, 0, 5, 1, 4, 2]]
    keys = torch.zeros(6, requires_grad=True)
    layer, optimizer = QuickSort(temperature=0.5), torch.optim.Adam([keys], lr=0.1)
    for _ in range(60):
        optimizer.zero_grad()
        (layer(keys, payload) - target).square().sum().backward()
        optimizer.step()
    assert torch.equal(layer.eval()(keys, payload), target)


# What it says, and what it refuses.


def test_it_has_no_state_and_says_what_it_is():
    layer = QuickSort("sampled", temperature=0.5, distribution="cauchy")
    assert list(layer.state_dict()) == []
    assert list(layer.parameters()) == []
    assert repr(layer) == "QuickSort(method=sampled, temperature=0.5, distribution=cauchy)"


MAKE: Any = QuickSort
LAYER: Any = QuickSort()
KEYS = torch.zeros(2, 4)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: MAKE("all"), "ValueError: method must be one of 'exact', 'sampled'; got"),
        (lambda: MAKE(distribution="gauss"), "ValueError: distribution must be one of 'student', "),
        (lambda: QuickSort(samples=-1), "ValueError: samples must be at least 0; got -1"),
        (lambda: QuickSort(temperature=0.0), "ValueError: temperature must be between 1e-30 and"),
        (lambda: LAYER(KEYS.long(), KEYS), "TypeError: keys must have a floating-point dtype"),
        (lambda: LAYER(KEYS, KEYS.long()), "TypeError: payload must have a floating-point dtype"),
        (
            lambda: LAYER(KEYS, torch.zeros(4, 2)),
            r"ValueError: payload must begin with the shape of keys, \(2, 4\); got \(4, 2\)",
        ),
        (lambda: LAYER(KEYS[0, 0], KEYS), r"ValueError: payload must begin with the shape of keys"),
        (
            lambda: LAYER.steps(KEYS, KEYS, KEYS[:1]),
            r"ValueError: target must have the shape of payload, \(2, 4\); got \(1, 4\)",
        ),
        (lambda: LAYER.halves(KEYS.long()), "TypeError: keys must have a floating-point dtype"),
        (
            lambda: LAYER(torch.zeros(1025), torch.zeros(1025)),
            "ValueError: odds must be of at most 1000 elements",
        ),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises((ValueError, TypeError, IndexError)) as info:
        call()
    assert re.match(message, f"{info.typename}: {info.value}")
