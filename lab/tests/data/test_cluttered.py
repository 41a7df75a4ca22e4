"""Canvases are those of the rules, drawn uniformly, by few operations and in little memory."""

import pytest
import scipy.stats
import torch
from lab.tests.data.scenes import Watch, slowly, some_digits
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from sparsewire_lab.data import (
    CANVAS_60,
    CANVAS_100,
    CANVAS_400,
    CANVASES,
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
        Canvas(400, 128, 8),
    ],
)
def test_canvases_are_those_of_a_plain_loop(canvas: Canvas) -> None:
    digits = some_digits()
    which = torch.tensor([3, 0, 6, 3, 5])[: 2 if canvas.size == 400 else 5]
    scene = clutter(digits, which, canvas, torch.Generator().manual_seed(5))
    images, corners = slowly(digits, which, canvas, seed=5)
    assert scene.images.dtype == torch.float32
    assert torch.equal(scene.images, images)
    assert torch.equal(scene.corners, corners)
    assert scene.images.min() >= 0
    assert scene.images.max() == 1 or canvas.distractors == 0


@pytest.mark.parametrize(("size", "central"), [(28, None), (90, None), (90, 0.4)])
def test_the_corner_is_where_the_digit_is(size: int, central: float | None) -> None:
    digits = some_digits()
    scene = clutter(digits, torch.arange(7), Canvas(size, 0, 8), central=central)
    for image, (row, column), digit in zip(
        scene.images, scene.corners.tolist(), digits.images, strict=True
    ):
        assert torch.equal(image[0, row : row + 28, column : column + 28], digit.float() / 255)
        assert image.count_nonzero() == digit.count_nonzero()
    assert size > 28 or not scene.corners.any()


def is_uniform(values: Tensor, size: int) -> bool:
    """Whether counts of 0 … size − 1 are what chance explains, at a level of 0.001."""
    counts = torch.bincount(values.reshape(-1), minlength=size)
    assert len(counts) == size
    return scipy.stats.chisquare(counts.numpy()).pvalue > 0.001


def test_digits_lie_everywhere_equally_often() -> None:
    digits = Digits(torch.zeros(1, 28, 28, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64))
    canvas = Canvas(33, 0, 8)
    corners = clutter(digits, torch.zeros(5000, dtype=torch.int64), canvas).corners
    assert is_uniform(corners[:, 0], 6)
    assert is_uniform(corners[:, 1], 6)
    assert is_uniform(corners[:, 0] * 6 + corners[:, 1], 36)


def test_pieces_come_from_everywhere_and_go_everywhere_equally_often() -> None:
    # A pixel of the second digit says which row of it it is; the first is black, and put on top.
    rows = (torch.arange(28, dtype=torch.uint8) + 1)[:, None].expand(28, 28)
    images = torch.stack((torch.zeros_like(rows), rows))
    digits = Digits(images, torch.arange(2))
    images = clutter(digits, torch.zeros(8000, dtype=torch.int64), Canvas(30, 1, 1)).images
    instance, _, row, column = images.nonzero(as_tuple=True)
    assert 3800 < len(instance) < 4200
    assert len(instance.unique()) == len(instance)
    assert is_uniform(row, 30)
    assert is_uniform(column, 30)
    assert is_uniform((images[instance, 0, row, column] * 255).round().long() - 1, 28)
    # Columns, the same way.
    turned = digits._replace(images=digits.images.mT.contiguous())
    images = clutter(turned, torch.zeros(8000, dtype=torch.int64), Canvas(30, 1, 1)).images
    assert is_uniform((images[images > 0] * 255).round().long() - 1, 28)


# Digits in the central part.


def central_scene(
    central: Tensor | float | None, canvas: Canvas = CANVAS_60, seed: int = 3, count: int = 200
) -> Scene:
    """Canvases of black digits: what is not black are pieces, of the same digits each time."""
    torch.manual_seed(0)
    digits = some_digits()
    digits.images[0] = 0
    which = torch.zeros(count, dtype=torch.int64)
    return clutter(digits, which, canvas, torch.Generator().manual_seed(seed), central)


def test_the_whole_canvas_is_as_good_as_none() -> None:
    for size in (28, 60, 61):
        canvas = Canvas(size, 2, 8)
        all_over, whole = central_scene(None, canvas), central_scene(1.0, canvas)
        assert whole.corners.dtype == torch.int64
        assert torch.equal(whole.corners, all_over.corners)
        assert torch.equal(whole.images, all_over.images)


@pytest.mark.parametrize(("size", "corner"), [(28, {0}), (60, {16}), (61, {16, 17}), (400, {186})])
def test_a_share_of_zero_puts_every_digit_in_the_middle(size: int, corner: set[int]) -> None:
    corners = central_scene(0.0, Canvas(size, 0, 8), count=20).corners
    assert len(corners.unique()) == 1
    assert int(corners[0, 0]) in corner


@pytest.mark.parametrize("central", [0.1, 0.5, 0.75])
@pytest.mark.parametrize("size", [60, 75])
def test_a_share_brings_corners_nearer_to_the_middle(central: float, size: int) -> None:
    """Each by that share, to the nearest pixel."""
    canvas, middle = Canvas(size, 0, 8), (size - 28) / 2
    everywhere = central_scene(None, canvas).corners
    nearer = central_scene(central, canvas).corners
    assert ((nearer - middle).abs() <= central * middle + 0.5).all()
    assert (nearer - middle - central * (everywhere - middle)).abs().max() <= 0.5 + 1e-4
    assert nearer.min() < middle - 0.8 * central * middle
    assert nearer.max() > middle + 0.8 * central * middle


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


def test_a_batch_is_sampled_with_the_share_that_it_is_given() -> None:
    digits = some_digits()

    def draw(central: Tensor | float | None) -> tuple[Scene, Tensor]:
        return sample_canvases(digits, 30, CANVAS_60, torch.Generator().manual_seed(4), central)

    (everywhere, labels), (middle, same) = draw(None), draw(0.0)
    assert torch.equal(labels, same)
    assert everywhere.corners.unique().numel() > 10
    assert (middle.corners == 16).all()
    assert torch.equal(draw(1.0)[0].images, everywhere.images)
    assert not torch.equal(middle.images, everywhere.images)
    assert torch.equal(draw(torch.tensor(0.0))[0].images, middle.images)


# What it costs.


def test_memory_does_not_grow_with_pieces_times_canvas() -> None:
    digits = some_digits()
    with Watch() as watch:
        sample_canvases(digits, 3, CANVAS_400)
    assert watch.largest == 3 * 400**2


def test_operations_are_as_many_for_any_batch() -> None:
    digits, operations = some_digits(), []
    for batch in (1, 50):
        with Watch() as watch:
            sample_canvases(digits, batch, CANVAS_60)
        operations.append(watch.operations)
    assert operations[0] == operations[1]
    assert len(operations[0]) < 70


@pytest.mark.parametrize("placed", [False, True])
def test_no_value_is_asked_for(placed: bool) -> None:
    # Fake tensors have no values: code that reads one fails.
    with FakeTensorMode():
        digits = Digits(torch.zeros(9, 28, 28, dtype=torch.uint8), torch.zeros(9).long())
        central = torch.rand(()) if placed else None
        scene, labels = sample_canvases(digits, 4, CANVAS_100, central=central)
    assert scene.images.shape == (4, 1, 100, 100)
    assert (scene.corners.shape, scene.corners.dtype) == ((4, 2), torch.int64)
    assert labels.shape == (4,)


def test_labels_of_a_batch_are_those_of_its_digits() -> None:
    digits = some_digits(50)
    scene, labels = sample_canvases(digits, 30, Canvas(28, 0, 8))
    for image, label in zip(scene.images[:, 0], labels, strict=True):
        (index,) = (digits.images.float().div(255) == image).all(-1).all(-1).nonzero()
        assert digits.labels[index] == label


def test_the_same_seed_gives_the_same_batch_and_another_does_not() -> None:
    digits = some_digits()

    def draw(seed: int) -> Tensor:
        return sample_canvases(digits, 3, CANVAS_60, torch.Generator().manual_seed(seed))[0].images

    before = torch.get_rng_state()
    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((27, 8, 8), "size must be at least 28, that of a digit; got 27"),
        ((100, -1, 8), "distractors must be 0 or more; got -1"),
        ((100, 8, 0), "patch must be 1 to 28; got 0"),
        ((100, 8, 29), "patch must be 1 to 28; got 29"),
    ],
)
def test_canvases_of_the_experiments_are_presets_and_others_are_refused(
    arguments: tuple[int, int, int], complaint: str
) -> None:
    assert {60: CANVAS_60, 100: CANVAS_100, 400: CANVAS_400} == CANVASES
    assert Canvas() == CANVAS_100 == Canvas(100, 8, 8)
    assert (Canvas(60, 4, 8), Canvas(400, 128, 8)) == (CANVAS_60, CANVAS_400)
    with pytest.raises(ValueError, match=complaint):
        Canvas(*arguments)


def test_bad_arguments_are_named() -> None:
    digits = some_digits()
    with pytest.raises(ValueError, match="batch must be at least 1; got 0"):
        sample_canvases(digits, 0)
    with pytest.raises(ValueError, match="count must be at least 1; got 0"):
        fixed_set(digits, CANVAS_60, 0, 0)
    for images in (digits.images.float(), digits.images[:, 1:], digits.images[:0]):
        with pytest.raises(ValueError, match=r"digits\.images must be uint8 of shape"):
            sample_canvases(digits._replace(images=images), 1)
    with pytest.raises(ValueError, match=r"digits\.labels must be of shape \(7,\)"):
        sample_canvases(digits._replace(labels=digits.labels[1:]), 1)
    with pytest.raises(IndexError):
        clutter(digits, torch.tensor([7]))
