"""Sets of canvases that are always the same, and canvases on a GPU."""

import pytest
import torch
from lab.tests.data.scenes import some_digits
from tests.helpers import LargestStorage, seeded

from sparsewire_lab.data import (
    CANVAS_60,
    CANVAS_100,
    CANVAS_400,
    Canvas,
    clutter,
    fixed_set,
    sample_canvases,
)


def test_a_fixed_set_of_all_digits_is_in_order_made_in_chunks_and_repeatable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sparsewire_lab.data.canvases._CHUNK_PIXELS", 3 * 60**2 + 1)
    digits, before = some_digits(20), torch.get_rng_state()
    with LargestStorage() as largest:
        images, labels = fixed_set(digits, CANVAS_60, 20, seed=3)
    assert largest.bytes == images.nbytes
    assert images.dtype == torch.uint8
    assert torch.equal(labels, digits.labels)
    generator = seeded(3)
    chunks = [clutter(digits, some, CANVAS_60, generator) for some in torch.arange(20).split(3)]
    assert torch.equal(images.float() / 255, torch.cat([scene.images for scene in chunks]))
    assert torch.equal(images, fixed_set(digits, CANVAS_60, 20, seed=3)[0])
    assert not torch.equal(images, fixed_set(digits, CANVAS_60, 20, seed=4)[0])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("count", [5, 13, 14])
def test_other_fixed_sets_are_shuffled_passes(count: int) -> None:
    digits = some_digits(7)._replace(labels=torch.arange(7))
    images, labels = fixed_set(digits, Canvas(28, 0, 8), count, seed=0)
    assert torch.equal(images[:, 0], digits.images[labels])
    times = torch.bincount(labels, minlength=7)
    assert times.max() - times.min() <= 1
    assert len(labels) == count
    assert labels[:5].tolist() != [0, 1, 2, 3, 4]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_captured_batch_is_new_at_each_replay() -> None:
    digits = some_digits(50).to("cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        sample_canvases(digits, 16)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scene, labels = sample_canvases(digits, 16)
    seen = []
    for _ in range(3):
        graph.replay()
        seen.append((scene.images.cpu(), scene.corners.cpu(), labels.cpu()))
    assert not torch.equal(seen[0][0], seen[1][0])
    assert not torch.equal(seen[1][1], seen[2][1])
    for images, corners, _ in seen:
        assert corners.min() >= 0
        assert corners.max() <= 72
        assert images.max() == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_canvases_on_a_gpu_are_made_without_waiting_and_repeatable() -> None:
    digits = some_digits(50).to("cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        sample_canvases(digits, 16, CANVAS_400)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    first, second = (fixed_set(digits, CANVAS_100, 200, seed=1) for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
