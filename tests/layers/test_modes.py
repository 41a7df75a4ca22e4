"""What is drawn, and when."""

from typing import Any

import pytest
import torch
from tests.helpers import seeded
from tests.layers.dense import random_input

from sparsewire import SparseLayer


def test_the_same_generator_gives_the_same_output_and_another_draw_another():
    layer = SparseLayer((8,), (8,), tuples=8, seed=0)
    x = random_input(4, 8, dtype=torch.float32)
    generator = seeded(1)
    first, second = (layer(x, generator=generator) for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(layer(x, generator=seeded(1)), first)
    assert not torch.equal(layer(x, generator=seeded(2)), first)


def test_without_a_generator_the_global_one_is_used():
    layer = SparseLayer((8,), (8,), tuples=8, seed=0)
    x = random_input(4, 8, dtype=torch.float32)
    torch.manual_seed(5)
    first, second = layer(x), layer(x)
    torch.manual_seed(5)
    assert torch.equal(layer(x), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("mode", ["rounded", "expected"])
def test_evaluation_draws_nothing_and_training_does(mode):
    layer = SparseLayer((8,), (8,), tuples=8, evaluation=mode, seed=0).eval()
    x = random_input(4, 8, dtype=torch.float32)
    before = torch.get_rng_state()
    assert torch.equal(layer(x), layer(x))
    assert torch.equal(layer(x), layer(x, mode=mode))
    assert torch.equal(torch.get_rng_state(), before)
    layer.train()
    assert not torch.equal(layer(x), layer(x))
    assert not torch.equal(torch.get_rng_state(), before)


def test_a_mode_for_one_call_wins_over_training_and_evaluation():
    layer = SparseLayer((8,), (8,), tuples=8, evaluation="sampled", seed=0)
    x = random_input(4, 8, dtype=torch.float32)
    trained, rounded = layer(x, generator=seeded(1)), layer(x, mode="rounded")
    layer.eval()
    assert torch.equal(layer(x, generator=seeded(1)), trained)
    assert torch.equal(layer(x, mode="rounded"), rounded)
    assert not torch.equal(trained, rounded)


def test_sampling_counts_and_regions_are_what_was_asked_for():
    counts: dict[str, Any] = {"local_samples": 3, "global_samples": 5, "region": (2, 1)}
    layer = SparseLayer((50,), (50,), tuples=6, context=2, seed=0, **counts)
    draw = layer.draw(generator=seeded(1))
    assert draw.indices.shape == (3, 2 * (4 + 3 + 5), 2)
    near = draw.indices.view(6, 12, 2)[:, 4:7] - layer.wiring().means.round().unsqueeze(1)
    assert set(near[..., 0].unique().tolist()) == {-1, 0}
    assert set(near[..., 1].unique().tolist()) == {0}


def test_no_samples_leave_the_nearest():
    layer = SparseLayer((9,), (9,), tuples=3, local_samples=0, global_samples=0, seed=0)
    low = layer.wiring().means.floor().long()
    assert torch.equal(layer.draw().indices.view(3, 4, 2)[:, 0], low)
