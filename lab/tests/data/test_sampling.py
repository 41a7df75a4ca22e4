"""What the samples of canvases, of numbers and of changes have in common."""

from collections.abc import Callable

import pytest
import torch
from lab.tests.data.scenes import Operations, some_digits
from tests.helpers import seeded
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from sparsewire_lab.data import CANVAS_60, CANVAS_100, Digits, sample_canvases
from sparsewire_lab.data.augment import sample_changes
from sparsewire_lab.data.numbers import group_by_label, pictures, sample_numbers

DIGITS = some_digits(10)._replace(labels=torch.arange(10))
GROUPS = group_by_label(DIGITS)


@pytest.mark.parametrize(
    "sample",
    [
        lambda generator: sample_canvases(DIGITS, 3, CANVAS_60, generator)[0].images,
        lambda generator: sample_numbers(GROUPS, 3, 4, 2, generator).which,
        lambda generator: sample_numbers(GROUPS, 3, 4, 2, generator).values,
        lambda generator: sample_changes(3, generator=generator),
    ],
)
def test_the_same_generator_gives_the_same_and_leaves_torch_s_own(
    sample: Callable[[torch.Generator | None], Tensor],
) -> None:
    before = torch.get_rng_state()
    first, again, other = (sample(seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    torch.manual_seed(1)
    assert torch.equal(sample(None), first)


@pytest.mark.parametrize(
    ("sample", "most"),
    [
        (lambda batch: sample_canvases(DIGITS, batch, CANVAS_60), 70),
        (lambda batch: pictures(GROUPS, sample_numbers(GROUPS, batch, batch, 6).which), 40),
    ],
)
def test_operations_are_as_many_for_any_batch(sample: Callable[[int], object], most: int) -> None:
    with Operations() as one:
        sample(1)
    with Operations() as fifty:
        sample(50)
    assert one.names == fifty.names
    assert len(one.names) < most


@pytest.mark.parametrize("placed", [False, True])
def test_no_value_is_asked_for(placed: bool) -> None:
    # Fake tensors have no values: code that reads one fails.
    with FakeTensorMode(allow_non_fake_inputs=True):
        digits = Digits(torch.zeros(9, 28, 28, dtype=torch.uint8), torch.zeros(9).long())
        central = torch.rand(()) if placed else None
        scene, labels = sample_canvases(digits, 4, CANVAS_100, central=central)
        which, values = sample_numbers(GROUPS, 4, 5, 2)
        found = pictures(GROUPS, which)
    assert scene.images.shape == (4, 1, 100, 100)
    assert (scene.corners.shape, scene.corners.dtype) == ((4, 2), torch.int64)
    assert (labels.shape, values.shape, which.shape) == ((4,), (4, 5), (4, 5, 2))
    assert found.shape == (4, 5, 2, 28, 28)
