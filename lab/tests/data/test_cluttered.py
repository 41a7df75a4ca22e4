"""Canvases are those of the rules, drawn uniformly, and in little memory."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from lab.tests.data.scenes import is_uniform, slowly, some_digits
from tests.helpers import LargestStorage, seeded
from torch import Tensor

from sparsewire_lab.data import (
    CANVAS_60,
    CANVAS_100,
    CANVAS_400,
    Canvas,
    Digits,
    Scene,
    clutter,
    fixed_set,
    sample_canvases,
)


@pytest.mark.parametrize(
    "canvas",
    [
        CANVAS_60,
        CANVAS_100,
        Canvas(40, 60, 8),  # so crowded that pieces are cut off, and digits again
        Canvas(28, 3, 28),
        Canvas(28, 0, 8),
        Canvas(35, 5, 1),
        CANVAS_400,
    ],
)
def test_canvases_are_those_of_a_plain_loop(canvas: Canvas) -> None:
    digits = some_digits()
    which = torch.tensor([3, 0, 6, 3, 5])
    scene = clutter(digits, which, canvas, seeded(5))
    images, corners = slowly(digits, which, canvas, seed=5)
    assert scene.images.dtype == torch.float32
    assert torch.equal(scene.images, images)
    assert torch.equal(scene.corners, corners)
    assert scene.images.min() >= 0
    assert scene.images.max() == 1 or canvas.distractors == 0


def test_the_corner_is_where_the_digit_is() -> None:
    digits = some_digits()
    scene = clutter(digits, torch.arange(7), Canvas(90, 0, 8), central=0.4)
    corners = scene.corners.tolist()
    for image, (row, column), digit in zip(scene.images, corners, digits.images, strict=True):
        assert torch.equal(image[0, row : row + 28, column : column + 28], digit.float() / 255)
        assert image.count_nonzero() == digit.count_nonzero()


def test_digits_lie_everywhere_equally_often() -> None:
    corners = clutter(some_digits(), torch.zeros(5000).long(), Canvas(33, 0, 8)).corners
    assert is_uniform(corners[:, 0] * 6 + corners[:, 1], 36)


@pytest.mark.parametrize("turned", [False, True])
def test_pieces_come_from_everywhere_and_go_everywhere_equally_often(turned: bool) -> None:
    # A pixel of the second digit says in which row (or column) it is; the first, on top, is black.
    lines = torch.arange(1, 29, dtype=torch.uint8).expand(28, 28)
    images = torch.stack((torch.zeros_like(lines), lines if turned else lines.mT))
    digits = Digits(images, torch.arange(2))
    images = clutter(digits, torch.zeros(8000).long(), Canvas(30, 1, 1)).images
    instance, _, row, column = images.nonzero(as_tuple=True)
    assert 3800 < len(instance) < 4200
    assert len(instance.unique()) == len(instance)
    assert is_uniform(row, 30)
    assert is_uniform(column, 30)
    assert is_uniform((images[images > 0] * 255).round().long() - 1, 28)


# Digits in the central part.


def central_scene(central: Tensor | float | None, canvas: Canvas = CANVAS_60) -> Scene:
    """Canvases of black digits: what is not black are pieces, of the same digits each time."""
    torch.manual_seed(0)
    digits = some_digits()
    digits.images[0] = 0
    return clutter(digits, torch.zeros(200).long(), canvas, seeded(3), central)


@pytest.mark.parametrize("central", [0.0, 0.1, 0.75, 1.0])
@pytest.mark.parametrize("size", [28, 60, 61])
def test_a_share_brings_corners_nearer_to_the_middle(central: float, size: int) -> None:
    """Each by that share, to the nearest pixel."""
    canvas, middle = Canvas(size, 0, 8), (size - 28) / 2
    everywhere = central_scene(None, canvas).corners
    nearer = central_scene(central, canvas).corners
    assert nearer.dtype == torch.int64
    assert (nearer - middle - central * (everywhere - middle)).abs().max() <= 0.5 + 1e-4
    assert central > 0 or len(nearer.unique()) == 1


@pytest.mark.parametrize(
    ("central", "dtype"), [(0.0, torch.float64), (0.3, torch.float32), (1.0, torch.float64)]
)
def test_the_share_may_be_a_tensor_and_pieces_do_not_depend_on_it(
    central: float, dtype: torch.dtype
) -> None:
    given, tensor = central_scene(central), central_scene(torch.tensor(central, dtype=dtype))
    assert torch.equal(tensor.corners, given.corners)
    for scene in (tensor, central_scene(None)):
        assert scene.images.any()
        assert torch.equal(scene.images, given.images)


# Batches.


@pytest.mark.parametrize("central", [0.0, torch.tensor(0.0)])
def test_a_batch_is_sampled_with_its_labels_and_the_share_that_it_is_given(
    central: Tensor | float,
) -> None:
    digits = some_digits(50)
    scene, labels = sample_canvases(digits, 30, Canvas(60, 0, 8), central=central)
    assert (scene.corners == 16).all()
    for image, label in zip(scene.images[:, 0, 16:44, 16:44], labels, strict=True):
        (index,) = (digits.images.float().div(255) == image).all(-1).all(-1).nonzero()
        assert digits.labels[index] == label


def test_memory_does_not_grow_with_pieces_times_canvas() -> None:
    digits = some_digits()
    with LargestStorage() as largest:
        scene, _ = sample_canvases(digits, 3, CANVAS_400)
    assert largest.bytes == scene.images.nbytes


DIGITS = Digits(torch.zeros(7, 28, 28, dtype=torch.uint8), torch.zeros(7).long())


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: Canvas(27, 8, 8), "size must be at least 28, that of a digit; got 27"),
        (lambda: Canvas(100, -1, 8), "distractors must be 0 or more; got -1"),
        (lambda: Canvas(100, 8, 0), "patch must be 1 to 28; got 0"),
        (lambda: Canvas(100, 8, 29), "patch must be 1 to 28; got 29"),
        (lambda: sample_canvases(DIGITS, 0), "batch must be at least 1; got 0"),
        (lambda: fixed_set(DIGITS, CANVAS_60, 0, 0), "count must be at least 1; got 0"),
        (lambda: clutter(DIGITS, torch.tensor([7])), "out of range"),
        *(
            (
                lambda images=images: sample_canvases(DIGITS._replace(images=images), 1),
                "be uint8 of",
            )
            for images in (DIGITS.images.float(), DIGITS.images[:, 1:], DIGITS.images[:0])
        ),
        (
            lambda: sample_canvases(DIGITS._replace(labels=DIGITS.labels[1:]), 1),
            r"digits\.labels must be of shape \(7,\)",
        ),
    ],
)
def test_canvases_that_cannot_be_are_refused(call: Callable[[], Any], complaint: str) -> None:
    with pytest.raises((ValueError, IndexError), match=complaint):
        call()
