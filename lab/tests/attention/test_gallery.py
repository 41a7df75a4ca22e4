"""Glimpses as drawn: boxes, points and pixels where they are, mistakes marked, boxes moving."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab.tests.figures.samples import save_frames
from matplotlib.figure import Figure
from matplotlib.patches import Polygon, Rectangle
from PIL import Image

from sparsewire_lab.attention.frames import GlimpseFrames, read_frames
from sparsewire_lab.attention.gallery import (
    animate_boxes,
    boxes_figure,
    chosen_images,
    gallery_figure,
    log_spaced,
)
from sparsewire_lab.data import CANVASES, fixed_set, load_digits


def saved(path: Path, **arrays: Any) -> GlimpseFrames:
    return read_frames(save_frames(path / "frames.npz", **arrays))


def polygons(axis: Any) -> list[Polygon]:
    return [patch for patch in axis.patches if isinstance(patch, Polygon)]


def pen(corners: np.ndarray) -> list[tuple[float, float]]:
    """Around a frame, from (down, right) to (right, down), and back to the beginning."""
    top_left, top_right, bottom_left, bottom_right = ((x, y) for y, x in corners.tolist())
    return [top_left, top_right, bottom_right, bottom_left, top_left]


def test_a_file_comes_back_as_it_is(tmp_path: Path) -> None:
    path = save_frames(tmp_path / "frames.npz", boxes=3)
    frames = read_frames(path)
    assert frames.corners.shape == (5, 4, 3, 4, 2)
    assert frames.points.shape == (6, 3, 5, 5, 2)
    assert frames.tracked == 4
    assert frames.sampled is not None
    with np.load(path) as file:
        for name in frames._fields:
            np.testing.assert_array_equal(getattr(frames, name), file[name])
    assert read_frames(save_frames(path, sampled=None)).sampled is None


@pytest.mark.parametrize(
    ("others", "complaint"),
    [
        ({"points": None, "labels": None}, r"it has no array labels, points"),
        ({"corners": np.zeros((5, 4, 4, 2))}, r"its corners must be of shape \(frames, .* got \(5"),
        ({"images": np.zeros((6, 30), np.uint8)}, r"its images must be of shape \(images, height"),
        ({"glimpses": np.zeros((6, 0, 5, 5))}, r"its glimpses must be of shape \(images, gl"),
        ({"glimpses": np.zeros((6, 1, 4, 5))}, r"its glimpses must be of shape \(6, 1, 5, 5\)"),
        ({"step": np.arange(4)}, r"its step must be of shape \(5\) as its corners .* got \(4,\)"),
        ({"corners": np.zeros((5, 4, 1, 3, 2))}, r"its corners must be of shape \(5, 4, 1, 4, 2\)"),
        ({"labels": np.arange(5)}, r"its labels must be of shape \(6\) .* got \(5,\)"),
        ({"points": np.zeros((6, 1, 5, 4, 2))}, r"its points must be of shape \(6, 1, 5, 5, 2\)"),
        ({"sampled": np.zeros((6, 1, 9, 2), int)}, r"its sampled must be of shape \(6, 1, 25, 2\)"),
        ({"sampled": np.zeros((6, 1, 25, 2))}, r"its sampled must be integers; got float64"),
        ({"images": np.zeros((6, 30, 30))}, r"its images must be uint8; got float64"),
        ({"corners": np.zeros((5, 7, 1, 4, 2))}, r"at least the 7 of its corners; got 6"),
        ({"corners": np.full((5, 4, 1, 4, 2), np.nan)}, r"its corners must be finite"),
        ({"step": np.array([{}] * 5)}, r"allow_pickle"),
    ],
)
def test_other_files_are_refused(others: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    path = save_frames(tmp_path / "frames.npz", **others)
    with pytest.raises(
        ValueError, match=rf"frames.npz must be a file of glimpse frames.*{complaint}"
    ):
        read_frames(path)


@pytest.mark.parametrize("sampled", [True, False])
def test_a_look_is_drawn_where_it_was(sampled: bool, tmp_path: Path) -> None:
    leave_out: dict[str, Any] = {} if sampled else {"sampled": None}
    frames = saved(tmp_path, **leave_out)
    figure = gallery_figure(frames)
    assert len(figure.axes) == 2 * 6
    for number in (0, 5):
        left, right = figure.axes[2 * number : 2 * number + 2]
        np.testing.assert_array_equal(left.images[0].get_array(), frames.images[number])
        (dots,) = left.collections
        places = frames.points[number, 0].reshape(-1, 2)
        places = frames.sampled[number, 0] if frames.sampled is not None else places
        np.testing.assert_array_equal(dots.get_offsets(), places[:, ::-1])
        (box,) = polygons(left)
        grid = frames.points[number, 0]
        corners = np.stack([grid[0, 0], grid[0, -1], grid[-1, 0], grid[-1, -1]])
        np.testing.assert_allclose(box.get_xy(), pen(corners))
        np.testing.assert_array_equal(right.images[0].get_array(), frames.glimpses[number, 0])
    caption = figure.get_supxlabel()
    assert ("one sample of the places" in caption) == sampled


def test_mistakes_come_last_and_are_marked_in_words_and_colour(tmp_path: Path) -> None:
    """A tracked image that is a mistake, too."""
    titles = [axis.title for axis in gallery_figure(saved(tmp_path)).axes[::2]]
    expected = ["0 → 0", "1 → 1", "2 → 2", "3 → 3", "4 → 5  ✗ wrong", "5 → 6  ✗ wrong"]
    assert [title.get_text() for title in titles] == expected
    colours = [title.get_color() for title in titles]
    assert colours[:4] == ["black"] * 4
    assert "black" not in colours[4:]
    frames = saved(tmp_path, predicted=np.array([7, 1, 2, 3, 4, 5]))
    titles = [axis.get_title() for axis in gallery_figure(frames).axes[::2]]
    assert titles[:2] == ["0 → 7  ✗ wrong", "1 → 1"]
    with pytest.raises(ValueError, match="count must be at least 1; got 0"):
        gallery_figure(frames, 0)


@pytest.mark.parametrize(
    ("tracked", "mistakes", "count", "chosen"),
    [
        (4, 2, 12, [0, 1, 2, 3, 4, 5]),
        (8, 8, 12, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
        (8, 8, 6, [0, 1, 2, 3, 8, 9]),
        (8, 0, 3, [0, 1, 2]),
        (2, 9, 1, [0]),
    ],
)
def test_a_third_is_for_mistakes(
    tracked: int, mistakes: int, count: int, chosen: list[int], tmp_path: Path
) -> None:
    sizes: dict[str, Any] = {"tracked": tracked, "mistakes": mistakes, "size": 2, "canvas": 4}
    assert chosen_images(saved(tmp_path, **sizes), count) == chosen


def test_boxes_and_glimpses_have_the_same_looks(tmp_path: Path) -> None:
    """All boxes are inside of the enlarged part."""
    frames = saved(tmp_path, boxes=8, size=3, canvas=50)
    image, enlarged, mosaic = gallery_figure(frames, 1).axes
    borders = [patch for patch in mosaic.patches if isinstance(patch, Rectangle)]
    for axis in (image, enlarged):
        boxes = polygons(axis)
        assert [box.get_edgecolor() for box in boxes] == [b.get_edgecolor() for b in borders]
        assert [box.get_linestyle() for box in boxes] == [b.get_linestyle() for b in borders]
    assert len({border.get_edgecolor() for border in borders}) == 8
    for tile, border, glimpse in zip(mosaic.images, borders, frames.glimpses[0], strict=True):
        np.testing.assert_array_equal(tile.get_array(), glimpse)
        left, right, bottom, top = tile.get_extent()
        assert (left, top) == border.get_xy()
        assert (right - left, bottom - top) == pytest.approx((1, 1))
    places = [tile.get_extent() for tile in mosaic.images]
    assert len({round(left) for left, *_ in places}) == 2
    assert len({round(top) for *_, top in places}) == 4
    for (left, _, _, top), (other, _, _, above) in itertools.combinations(places, 2):
        assert abs(left - other) > 1 or abs(top - above) > 1  # no two overlap
    (left, right), (bottom, top) = enlarged.get_xlim(), enlarged.get_ylim()
    assert right - left == pytest.approx(bottom - top)
    ends = np.concatenate([box.get_xy() for box in polygons(enlarged)])
    assert left < ends[:, 0].min() < ends[:, 0].max() < right
    assert top < ends[:, 1].min() < ends[:, 1].max() < bottom


@pytest.mark.parametrize(("glimpses", "canvas"), [(1, 30), (8, 30), (1, 240), (8, 240)])
def test_galleries_stay_inside_of_the_picture(glimpses: int, canvas: int, tmp_path: Path) -> None:
    figure = gallery_figure(saved(tmp_path, boxes=glimpses, canvas=canvas, size=3))
    figure.savefig(tmp_path / "glimpses.png")
    page, box = figure.bbox, figure.get_tightbbox()
    assert 0 <= box.x0 < box.x1 <= page.width / figure.dpi
    assert 0 <= box.y0 < box.y1 <= page.height / figure.dpi


@pytest.mark.parametrize(
    ("steps", "chosen"),
    [
        (range(0, 4100, 100), [0, 1, 3, 6, 16, 40]),
        ((0, 10, 20), [0, 1, 2]),
        ((0,), [0]),
        ((500, 600, 700, 900, 1300), [0, 1, 2, 3, 4]),
    ],
)
def test_steps_are_spread_by_their_logarithm(steps: Any, chosen: list[int], tmp_path: Path) -> None:
    """Of 100 to 4,000 in four equal ratios: 100, 251, 632, 1,591, 4,000; fewer of large images."""
    assert log_spaced(np.array(steps), 6) == chosen
    if len(steps) == 41:
        frames = saved(tmp_path, frames=41, tracked=1, mistakes=0, canvas=201)
        titles = [axis.get_title() for axis in boxes_figure(frames).axes]
        assert titles == ["step 0", "step 100", "step 600", "step 4,000"]


def test_a_strip_has_a_row_for_an_image_and_a_column_for_a_step(tmp_path: Path) -> None:
    frames = saved(tmp_path, frames=41, tracked=5, boxes=2)
    figure = boxes_figure(frames)
    chosen = [0, 1, 3, 6, 16, 40]
    titles = [axis.get_title() for axis in figure.axes[:6]]
    assert titles == ["step 0", "step 100", "step 300", "step 600", "step 1,600", "step 4,000"]
    assert len(figure.axes) == 4 * 6
    for place, axis in enumerate(figure.axes):
        row, column = divmod(place, 6)
        np.testing.assert_array_equal(axis.images[0].get_array(), frames.images[row])
        drawn = [box.get_xy() for box in polygons(axis)]
        expected = [pen(four) for four in frames.corners[chosen[column], row]]
        np.testing.assert_allclose(drawn, expected)
        # Nothing is cut off at the edge, and down is down.
        assert axis.get_xlim()[0] < 0 < 29 < axis.get_xlim()[1]
        assert axis.get_ylim()[0] > 29 > 0 > axis.get_ylim()[1]


def test_the_animation_is_small(tmp_path: Path) -> None:
    """On real canvases, which a palette and a compression find harder than boxes."""
    images, labels = fixed_set(load_digits("test"), CANVASES[100], 4, 0)
    shown: dict[str, Any] = {"images": images[:, 0].numpy(), "labels": labels.numpy()}
    frames = saved(tmp_path, frames=40, mistakes=0, canvas=100, boxes=8, size=2, **shown)
    made = animate_boxes(frames, tmp_path / "boxes.gif", frames_per_second=5)
    assert made.stat().st_size < 1_000_000
    with Image.open(made) as gif:
        assert gif.width <= 700
        assert getattr(gif, "n_frames", 1) == 40


def test_boxes_move_to_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames, drawn = saved(tmp_path, tracked=5, boxes=2), []

    def film(figure: Figure, draw: Any, count: int, path: Path, *_: Any) -> Path:
        assert count == 5
        draw(3)
        drawn.append(figure)
        return path

    monkeypatch.setattr("sparsewire_lab.attention.gallery.film", film)
    animate_boxes(frames, tmp_path / "boxes.gif")
    (figure,) = drawn
    assert figure.get_suptitle() == "step 300"
    assert len(figure.axes) == 4
    for axis, image, corners in zip(figure.axes, frames.images, frames.corners[3], strict=False):
        np.testing.assert_array_equal(axis.images[0].get_array(), image)
        np.testing.assert_allclose([b.get_xy() for b in polygons(axis)], [*map(pen, corners)])
