"""Layers to be rewired, and tuples put where a test wants them."""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from tests.helpers import sampled_layer, seeded
from tests.nn.dense import tuples_of
from torch import Tensor

import sparsewire as sw
from sparsewire import FreeTuples, HyperLayer, Rewire, SparseLayer
from sparsewire.ops import flat_index

NARROW = -20.0  # raw variance of a tuple that is sure of its place


class Setup(NamedTuple):
    layer: HyperLayer
    optimizer: torch.optim.Optimizer
    rewire: Rewire


def setup(layer: HyperLayer, every: int = 10**9, **options: Any) -> Setup:
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
    return Setup(layer, optimizer, Rewire(layer, optimizer, every, **options))


def held_by(layer: HyperLayer) -> list[tuple[int, ...]]:
    return [tuple(place) for place in layer.nearest_places(layer.wiring().means).tolist()]


@torch.no_grad()
def put(layer: HyperLayer, means: Any, values: Any = None, raw_variances: Any = NARROW) -> None:
    """Put the tuples of a layer with edge clamp at exact means."""
    source, last = tuples_of(layer), torch.tensor(layer.space()) - 1
    raw = torch.as_tensor(means, dtype=source.raw_means.dtype) / last.clamp(min=1)
    source.raw_means.copy_(raw)
    source.raw_variances.copy_(torch.as_tensor(raw_variances).expand_as(source.raw_variances))
    if values is not None:
        source.values.copy_(torch.as_tensor(values))


def offer(rewire: Rewire, places: Sequence[Sequence[int]], sizes: Sequence[float]) -> None:
    """Let these be the places that were kept, with the sizes of their gradients."""
    flat = flat_index(torch.tensor(places), rewire.layers[0].layer.space())
    rewire.layers[0].gradients.fill_(-1.0)
    rewire.layers[0].places[: len(flat)] = flat
    rewire.layers[0].gradients[: len(flat)] = torch.tensor(sizes)


def flat_layer(size: int, tuples: int, **options: Any) -> SparseLayer:
    options = {"edge": "clamp", "seed": 0, **options}
    return sampled_layer((size,), (size,), tuples=tuples, **options)


def train(one: Setup, steps: int, target: Tensor, batch: int = 64) -> None:
    layer, ins = one.layer, [size or 1 for size in one.layer.in_shape]
    for _ in range(steps):
        x = torch.randn(batch, *ins)
        one.optimizer.zero_grad()
        (layer(x).flatten(1) - x.flatten(1) @ target.T).square().mean().backward()
        one.optimizer.step()
        one.rewire.step()


SOURCES: dict[str, tuple[Callable[..., FreeTuples], tuple[int, ...], tuple[int, ...]]] = {
    "lower": (sw.LowerTriangular, (5,), (6,)),
    "banded": (functools.partial(sw.Banded, 1, 2), (7,), (6,)),
    "convolution": (functools.partial(sw.Convolution, (3,)), (2, 4), (3, 4)),
    "rank 1": (functools.partial(FreeTuples, rank=1), (), (9,)),
    "rank 2": (functools.partial(FreeTuples, rank=2), (5,), (6,)),
    "rank 3": (functools.partial(FreeTuples, rank=3), (3, 2), (4,)),
    "rank 4": (functools.partial(FreeTuples, rank=4), (3, 1), (2, 4)),
}


def make(kind: str, tuples: int, **options: Any) -> HyperLayer:
    source, in_shape, out_shape = SOURCES[kind]
    edge, values = options.pop("edge", "sigmoid"), options.pop("values", None)
    return HyperLayer(
        source(tuples=tuples, seed=0, edge=edge, values=values, schedule=None),
        in_shape,
        out_shape,
        **options,
    )


def allowed_places(layer: HyperLayer) -> list[tuple[int, ...]]:
    every = torch.tensor(list(itertools.product(*map(range, layer.space()))))
    nearest = layer.nearest_places(every.float())  # the place itself, where it is allowed
    return [tuple(place) for place in every[(nearest == every).all(1)].tolist()]


def all_wasted(kind: str, dtype: torch.dtype, **options: Any) -> tuple[Setup, list[Any]]:
    """A layer with all tuples at one place, and all other allowed places to go to."""
    places = allowed_places(make(kind, tuples=1))
    one = setup(make(kind, tuples=len(places), values=1.0, **options).to(dtype))
    with torch.no_grad():
        source = tuples_of(one.layer)
        source.raw_means.copy_(source.raw_means[:1].expand_as(source.raw_means))
        source.raw_variances.fill_(0.0)
    home = held_by(one.layer)[0]
    places.remove(home)
    goals = [places[i] for i in torch.randperm(len(places), generator=seeded(1)).tolist()]
    offer(one.rewire, goals, [float(len(goals) - i) for i in range(len(goals))])
    return one, [home, *goals]


def keepers_one_by_one(
    means: list[list[float]], held: list[list[int]], strength: list[float]
) -> list[int]:
    """The definition, pair by pair."""
    everyone = range(len(means))
    order = sorted(everyone, key=lambda i: (-strength[i], i))
    turn = {i: n for n, i in enumerate(order)}
    owner = {tuple(held[i]): i for i in reversed(order)}
    first = []
    for i in everyone:
        options: list[tuple[float, tuple[int, ...], int]] = [(math.inf, (), i)]
        for place, j in owner.items():
            offset = [there - here for there, here in zip(place, held[i], strict=True)]
            if turn[j] >= turn[i] or max(map(abs, offset)) > 1:
                continue
            distance = math.dist(means[i], means[j]) if any(offset) else 0.0
            if distance < 0.7:  # at equal distance: the lower place first
                options.append((distance, tuple((0, -1, 1).index(step) for step in offset), j))
        first.append(min(options)[2])
    return [keeper if first[keeper] == keeper else i for i, keeper in enumerate(first)]
