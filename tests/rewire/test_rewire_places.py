"""Rewiring: which sampled places are kept of each pass."""

import gc
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tests.helpers import sampled_layer
from tests.rewire.wires import Setup, allowed_places, make, setup

from sparsewire import HyperLayer, Rewire, Sample, SparseLayer
from sparsewire.ops import flat_index


def watched(one: Setup) -> list[Sample]:
    """Collect the draws of every pass, with the gradients of their values in place of them."""
    passes: list[Sample] = []

    def watch(draw: Sample) -> None:
        indices = draw.indices
        draw.values.register_hook(lambda g: passes.append(Sample(indices, g.clone())))
        one.rewire.layers[0]._on_sample(draw)

    one.layer.on_sample = watch
    return passes


Samples = list[tuple[float, int]]


def samples(layer: HyperLayer, passes: Sequence[Sample]) -> list[Samples]:
    """The local and global samples of each pass: the size of its gradient, and its place."""
    space = layer.space()
    found: list[Samples] = []
    for indices, gradient in passes:
        each = 2 ** len(space) + layer.local_samples + layer.global_samples
        flat = flat_index(indices, space).flatten().tolist()
        pairs = enumerate(zip(flat, gradient.flatten().tolist(), strict=True))
        found.append([(abs(g), place) for n, (place, g) in pairs if n % each >= 2 ** len(space)])
    return found


def kept_by(rewire: Rewire) -> Samples:
    filled = rewire.layers[0].gradients >= 0
    return list(
        zip(
            rewire.layers[0].gradients[filled].tolist(),
            rewire.layers[0].places[filled].tolist(),
            strict=True,
        )
    )


def assert_best_kept(rewire: Rewire, found: list[Samples]) -> None:
    """Of what was kept and each pass the best as many as fit, and of those each place once."""
    model: Samples = []
    for new in found:
        best = sorted([*model, *new], reverse=True)[: len(rewire.layers[0].gradients)]
        model = [(g, place) for n, (g, place) in enumerate(best) if place not in _places(best[:n])]
    assert sorted(kept_by(rewire), reverse=True) == model


def _places(samples: Samples) -> set[int]:
    return {place for _, place in samples}


def plain(**options: Any) -> SparseLayer:
    return sampled_layer((9,), (8,), tuples=6, seed=0, **options)


LAYERS: dict[str, Callable[[], HyperLayer]] = {
    "plain": plain,
    "wirings": lambda: plain(wirings=4),
    "contexts": lambda: plain(context=2, wirings=3),
    "high rank": lambda: sampled_layer((3, 4), (2, 2), tuples=5, local_samples=1, seed=0),
    "one axis": lambda: sampled_layer((), (9,), tuples=4, seed=0),
    "local only": lambda: plain(global_samples=0),
    "global only": lambda: plain(local_samples=0),
    "features": lambda: plain(features=1),
    "room left": lambda: plain(local_samples=1, global_samples=1),
}


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("count", [1, 5])
def test_the_best_samples_of_all_passes_are_kept(kind, count):
    one = setup(LAYERS[kind]())
    layer = one.layer
    passes = watched(one)
    for _ in range(count):
        x = torch.randn(10, *(size or 1 for size in layer.in_shape), *[3] * layer.features)
        layer(x).square().mean().backward()
    assert len(passes) == count
    found = samples(layer, passes)
    assert_best_kept(one.rewire, found)
    if kind == "room left" and count == 1:
        assert len(found[0]) == 12
        assert _places(kept_by(one.rewire)) == _places(found[0])


def test_kept_gradients_are_those_of_a_dense_matrix():
    one = setup(sampled_layer((7,), (6,), tuples=5, seed=0))
    x, target = torch.randn(12, 7), torch.randn(12, 6)
    y = one.layer(x)
    (y - target).square().mean().backward()
    dense = (2 * (y - target) / y.numel()).detach().T @ x
    kept = one.rewire.layers[0].gradients >= 0
    assert kept.sum() > 5
    at = one.rewire.layers[0].places[kept]
    torch.testing.assert_close(one.rewire.layers[0].gradients[kept], dense.flatten()[at].abs())


def test_several_backward_passes_of_a_step_are_all_kept():
    one = setup(plain())
    passes = watched(one)
    losses = [one.layer(torch.randn(5, 9)).square().mean() for _ in range(3)]
    torch.stack(losses).sum().backward()
    assert len(passes) == 3
    assert_best_kept(one.rewire, samples(one.layer, passes))


@pytest.mark.parametrize("kind", ["lower", "banded", "convolution"])
def test_places_that_are_not_allowed_are_never_kept(kind):
    one = setup(make(kind, tuples=12))
    passes = watched(one)
    for _ in range(4):
        x = torch.randn(10, *(size or 1 for size in one.layer.in_shape))
        everything = 10 * x.flatten(1).sum(1).view(-1, *[1] * len(one.layer.out_shape))
        (one.layer(x) - everything).square().mean().backward()  # asks for every place alike
    places = one.rewire.layers[0].places[one.rewire.layers[0].gradients >= 0]
    allowed = flat_index(torch.tensor(allowed_places(one.layer)), one.layer.space()).tolist()
    assert set(places.tolist()) <= set(allowed)
    found = samples(one.layer, passes)
    assert_best_kept(one.rewire, [[s for s in each if s[1] in allowed] for each in found])


def test_gradients_that_are_not_finite_are_not_kept():
    one = setup(plain())
    x = torch.randn(10, 9)
    x[:, 3] = math.nan
    x[:, 4] = math.inf
    one.layer(x).sum().backward()
    columns = {place % 9 for _, place in kept_by(one.rewire)}
    assert columns
    assert not columns & {3, 4}


@pytest.mark.parametrize("mode", ["rounded", "expected"])
def test_passes_that_sample_nothing_are_not_watched(mode):
    one = setup(plain())
    one.layer(torch.randn(4, 9), mode=mode).sum().backward()
    assert (one.rewire.layers[0].gradients == -1).all()
    with torch.no_grad():
        one.layer(torch.randn(4, 9))
    assert (one.rewire.layers[0].gradients == -1).all()


def test_a_pass_leaves_nothing_behind():
    one = setup(plain())
    alive: list[Any] = []

    def watch(draw: Sample) -> None:
        alive.append(weakref.ref(draw.values))
        one.rewire.layers[0]._on_sample(draw)

    one.layer.on_sample = watch
    for _ in range(3):
        one.layer(torch.randn(4, 9)).sum().backward()
    gc.collect()
    assert [ref() for ref in alive] == [None] * 3
