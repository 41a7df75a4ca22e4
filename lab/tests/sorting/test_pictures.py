"""Keys and sorts as drawn: points where the numbers are, pictures where quicksort moves them."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lab.tests.figures.samples import hard_half, save_keys
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from PIL import Image
from scipy import stats

from sparsewire.sorting import QuickSort
from sparsewire_lab.figures.save import save
from sparsewire_lab.sorting.keys import keys_figure, steps_figure, three_frames
from sparsewire_lab.sorting.keys_file import Keys, misplaced, read_keys, sort_of, spearman


def saved(path: Path, **arrays: Any) -> Keys:
    return read_keys(save_keys(path / "keys.npz", **arrays))


# The file.


def test_a_file_comes_back_as_it_is(tmp_path: Path) -> None:
    path = save_keys(tmp_path / "keys.npz")
    keys = read_keys(path)
    with np.load(path) as file:
        for name in Keys._fields:
            np.testing.assert_array_equal(getattr(keys, name), file[name])
    without = read_keys(save_keys(path, halves=None, images=None))
    assert (without.halves, without.images) == (None, None)
    path.write_text("something else")
    with pytest.raises(ValueError, match="must be a file of keys"):
        read_keys(path)


@pytest.mark.parametrize(
    ("others", "complaint"),
    [
        ({"keys": None, "values": None}, r"it has no array keys, values"),
        ({"keys": np.zeros((3, 0))}, r"its keys must be of shape \(frames, numbers\); got \(3, 0"),
        ({"keys": np.zeros(4)}, r"its keys must be of shape \(frames, numbers\); got \(4,\)"),
        ({"step": np.arange(4)}, r"its step must be of shape \(3\) .* got \(4,\)"),
        ({"values": np.arange(5)}, r"its values must be of shape \(4\) .* got \(5,\)"),
        ({"values": np.zeros(4)}, r"its values must be integers; got float64"),
        ({"keys": np.full((3, 4), np.nan)}, r"its keys must be finite"),
        ({"halves": np.full((3, 2, 4, 4), np.inf)}, r"its halves must be finite"),
        ({"halves": np.zeros((3, 2, 4, 5))}, r"its halves must be of shape \(3, 2, 4, 4\)"),
        ({"halves": np.zeros(3)}, r"its halves must be of shape \(3, levels, 4, 4\)"),
        ({"halves": None}, r"halves and images, or none of them"),
        ({"images": None}, r"halves and images, or none of them"),
        ({"images": np.zeros((5, 1, 6, 6), np.uint8)}, r"must be at most the 4 of its keys; got 5"),
        ({"images": np.zeros((4, 6, 6), np.uint8)}, r"images must be of shape \(numbers, digits"),
        ({"images": np.zeros((4, 1, 6, 6))}, r"its images must be uint8; got float64"),
    ],
)
def test_files_that_do_not_fit_are_refused(others: Any, complaint: str, tmp_path: Path) -> None:
    path = save_keys(tmp_path / "keys.npz", **others)
    with pytest.raises(ValueError, match=rf"keys\.npz must be a file of keys .*{complaint}"):
        read_keys(path)


# The sort.


def test_a_sort_is_that_of_the_layer(tmp_path: Path) -> None:
    """Of six numbers, which are not a power of two, with pictures of two digits."""
    keys, values = torch.randn(1, 6), torch.randperm(6)
    images = torch.randint(256, (6, 2, 5, 5), dtype=torch.uint8)
    sort = QuickSort(temperature=0.5)
    halves = torch.stack(sort.halves(keys[0]))[None]
    arrays = {"keys": keys, "values": values, "halves": halves, "images": images}
    read = saved(tmp_path, step=np.array([0]), **{k: v.numpy() for k, v in arrays.items()})
    pictures = images.float() / 255
    want = sort.steps(keys[0], pictures, pictures[values.argsort()])
    found = sort_of(read, 0)
    np.testing.assert_allclose(found.values, torch.stack(want.values), atol=1e-5)
    np.testing.assert_allclose(found.targets, torch.stack(want.targets), atol=1e-5)


def test_misplaced_numbers_are_counted(tmp_path: Path) -> None:
    keys = saved(tmp_path)
    # 4 3 2 1 for 3 1 4 2: they come as 2 4 1 3. 3 1 2 4: they come as 1 4 3 2.
    assert [misplaced(keys, frame) for frame in range(3)] == [4, 2, 0]
    ties = saved(tmp_path, values=np.array([3, 1, 3, 3]))
    assert [misplaced(ties, frame) for frame in range(3)] == [2, 0, 0]


def test_without_halves_there_is_no_sort(tmp_path: Path) -> None:
    keys = saved(tmp_path, halves=None, images=None)
    for call in (lambda: sort_of(keys, 0), lambda: steps_figure(keys)):
        with pytest.raises(ValueError, match="keys must have halves and images"):
            call()
    with pytest.raises(ValueError, match="keys must have the images of a set"):
        misplaced(keys, 0)
    assert save(keys_figure(keys), tmp_path / "keys.png").stat().st_size > 1000


# Keys against numbers.


@pytest.mark.parametrize("levels", [3, 100])
def test_the_correlation_of_ranks_is_spearman_s(levels: int) -> None:
    """With many ties and with few."""
    rng = np.random.default_rng(0)
    a = rng.integers(levels, size=50)
    b = a + rng.integers(levels, size=50)
    want: Any = stats.spearmanr(a, b)
    assert spearman(a, b) == pytest.approx(want.statistic)
    assert math.isnan(spearman(a, np.zeros(50)))


@pytest.mark.parametrize(
    ("steps", "chosen"),
    [
        ([0], [0]),
        ([0, 7], [0, 1]),
        ([0, 10, 20, 30, 40, 90], [0, 3, 5]),
        ([5, 5], [0]),
        # √(500 · 20,000) is 3,162.
        (list(range(0, 20_001, 500)), [0, 6, 40]),
    ],
)
def test_frames_are_the_first_one_between_and_the_last(steps: list[int], chosen: list[int]) -> None:
    assert three_frames(np.array(steps)) == chosen


def test_keys_are_drawn_where_they_are(tmp_path: Path) -> None:
    """Those that are all equal, too, though they have no correlation."""
    keys = saved(tmp_path)
    figure = keys_figure(keys)
    # Of 3 1 4 2 and 4 3 2 1 the squares of rank differences are 1, 4, 4, 1: 1 - 6 · 10 / 60.
    # And with 3 1 2 4 they are 0, 0, 4, 4: 1 - 6 · 8 / 60.
    for axis, drawn, step, rho in zip(
        figure.axes, keys.keys, (0, 100, 900), ("0.000", "0.200", "1.000"), strict=True
    ):
        assert axis.get_title() == f"step {step}\nSpearman's ρ {rho}"
        (points,) = axis.collections
        found = np.asarray(points.get_offsets())
        np.testing.assert_allclose(found, np.stack([keys.values, drawn], 1))
    assert figure.axes[0].get_ylabel() == "key that the network gives it"
    assert figure.get_supxlabel() == "true value of each of 4 held-out numbers"
    with Image.open(save(figure, tmp_path / "new" / "keys.png")) as picture:
        assert picture.width == 1200
    figure = keys_figure(saved(tmp_path, keys=np.ones((3, 4))))
    assert "unknown" in figure.axes[0].get_title()
    save(figure, tmp_path / "keys.png")


# The sort as it happens.


def texts(axis: Axes) -> list[str]:
    return [text.get_text() for text in axis.texts]


def test_rows_are_the_levels_of_the_sort(tmp_path: Path) -> None:
    keys = saved(tmp_path)
    figure = steps_figure(keys)
    assert len(figure.axes) == 6  # two sides at three steps
    for number, (left, right) in enumerate(zip(figure.axes[::2], figure.axes[1::2], strict=True)):
        for axis, pictures in zip((left, right), sort_of(keys, number), strict=True):
            assert len(axis.images) == 3
            for image, row in zip(axis.images, pictures, strict=True):
                joined = np.concatenate(row[:, 0], axis=1)
                np.testing.assert_allclose(np.asarray(image.get_array()), joined)
        assert texts(left)[4:] == ["as it came", "2 buckets", "sorted"]
        tops = [image.get_extent()[3] for image in left.images]
        assert tops == sorted(tops)
    said = [text.get_text() for text in figure.texts]
    assert said[:2] == ["the set, sorted level by level ↓", "the right order, sent back ↑"]
    assert said[2:5] == [
        "step 0: 4 of 4 misplaced",
        "step 100: 2 of 4 misplaced",
        "step 900: all in order",
    ]
    with Image.open(save(figure, tmp_path / "new" / "steps.png")) as picture:
        assert picture.width == 1200


def test_numbers_stand_in_the_order_of_their_keys(tmp_path: Path) -> None:
    figure = steps_figure(saved(tmp_path, places=2))
    found = [texts(axis)[:4] for axis in figure.axes]
    right = ["10", "20", "30", "40"]
    assert found == [["20", "40", "10", "30"], right, ["10", "40", "30", "20"], right, right, right]
    marks = [
        [(to_hex(text.get_color()), text.get_fontweight()) for text in axis.texts[:4]]
        for axis in figure.axes
    ]
    plain, wrong = ("#000000", "normal"), ("#c00000", "bold")
    assert marks[:3] == [[wrong] * 4, [plain] * 4, [plain, wrong, plain, wrong]]
    small = saved(tmp_path, places=3, values=np.array([30, 1, 400, 20]))
    assert texts(steps_figure(small).axes[1])[:4] == ["001", "020", "030", "400"]


def test_buckets_are_cut_where_quicksort_cuts_them(tmp_path: Path) -> None:
    """Of four: none, in the middle, and in the last row nothing is left to cut."""
    axis = steps_figure(saved(tmp_path)).axes[0]
    cuts = [
        (np.asarray(line.get_xdata())[0], np.asarray(line.get_ydata())[0])
        for line in axis.lines
        if to_hex(line.get_color()) == "#e69f00"
    ]
    assert cuts == [(2, axis.images[1].get_extent()[3])]


def saved_large(folder: Path, n: int, places: int, frames: int = 3) -> Keys:
    rng = np.random.default_rng(0)
    return saved(
        folder,
        step=100 * np.arange(frames),
        keys=rng.random((frames, n)),
        values=rng.permutation(n),
        halves=np.broadcast_to(hard_half(range(n)), (frames, max(n - 1, 1).bit_length(), n, n)),
        images=rng.integers(0, 256, (n, places, 6, 6), dtype=np.uint8),
    )


@pytest.mark.parametrize(
    ("n", "places", "steps"),
    [(2, 1, 3), (4, 3, 3), (5, 2, 3), (8, 3, 3), (16, 3, 2), (32, 3, 3), (3, 6, 3), (16, 1, 3)],
)
def test_everything_stays_inside_of_the_picture(
    n: int, places: int, steps: int, tmp_path: Path
) -> None:
    """What would be too tall leaves out the step between."""
    figure = steps_figure(saved_large(tmp_path, n, places))
    assert len(figure.axes) == 2 * steps
    assert figure.texts[1 + steps].get_text().startswith("step 200: ")
    figure.savefig(tmp_path / "steps.png")
    box = figure.get_tightbbox()
    assert 0 <= box.x0 < box.x1 <= 8.0
    assert 0 <= box.y0 < box.y1 <= figure.get_figheight() <= 10
    left, right = figure.axes[:2]
    assert left.get_position().x1 < right.get_position().x0


def test_long_sets_have_their_digits_below_each_other(tmp_path: Path) -> None:
    keys = saved_large(tmp_path, 16, 3)
    assert keys.images is not None
    figure = steps_figure(keys)
    shown = np.asarray(figure.axes[0].images[0].get_array())
    assert shown.shape == (18, 96)
    # The third number: its digits from top to bottom.
    np.testing.assert_allclose(shown[:, 12:18], np.concatenate(list(keys.images[2])) / 255)
    assert "below each other" in figure.texts[-1].get_text()
    short = steps_figure(saved_large(tmp_path, 8, 3))
    assert np.asarray(short.axes[0].images[0].get_array()).shape == (6, 144)
    assert "below each other" not in short.texts[-1].get_text()
    once = saved_large(tmp_path, 4, 1, frames=1)
    assert (len(steps_figure(once).axes), len(keys_figure(once).axes)) == (2, 1)
