"""Wires as drawn: at their means, as wide as they are sure, and moving."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab.tests.figures.samples import save_wiring
from PIL import Image, ImageSequence

import sparsewire as sw
from sparsewire_lab.figures.arrays import nearest
from sparsewire_lab.figures.save import save
from sparsewire_lab.identity.wiring import (
    Frames,
    animate_wiring,
    matrix_figure,
    read_matrix,
    read_wiring,
    rounded_matrix,
    wiring_figure,
)


def saved(path: Path, **arrays: Any) -> Frames:
    return read_wiring(save_wiring(path / "wiring.npz", **arrays))


def test_a_file_comes_back_as_it_is_but_only_matrices_are_drawn(tmp_path: Path) -> None:
    frames = saved(tmp_path, sizes=(3, 4, 5))
    assert frames.means.shape == frames.variances.shape == (5, 3, 3)
    assert frames.indices.shape == (5, 12, 3)
    assert frames.step.tolist() == [0, 100, 200, 300, 400]
    assert frames.shape.tolist() == [3, 4, 5]
    with pytest.raises(ValueError, match="with 2 index axes; got 3"):
        read_matrix(tmp_path / "wiring.npz")
    with pytest.raises(ValueError, match="steps must name at least one step"):
        wiring_figure(saved(tmp_path), ())


@pytest.mark.parametrize(
    ("others", "complaint"),
    [
        ({"values": None, "shape": None}, r"it has no array values, shape"),
        ({"means": np.zeros((3, 2))}, r"its means must be of shape \(frames, .* got \(3, 2\)"),
        ({"step": np.arange(4)}, r"its step must be of shape \(5\) as .* got \(4,\)"),
        ({"variances": np.ones((5, 2, 2))}, r"its variances must be of shape \(5, 3, 2\)"),
        ({"indices": np.zeros((5, 2), int)}, r"its indices must be of shape \(5, m, 2\)"),
        ({"indices": np.zeros((5, 9, 2))}, r"its indices must be integers; got float64"),
        ({"shape": np.array([6, 4, 1])}, r"its shape must be of shape \(2\)"),
        ({"variances": -np.ones((5, 3, 2))}, r"variances must not be negative"),
        ({"means": np.full((5, 3, 2), np.nan)}, r"means must be finite"),
        ({"values": np.full((5, 3), np.inf)}, r"values must be finite"),
        ({"shape": np.array([6, 0])}, r"its sizes at least 1"),
        ({"step": np.array([{}] * 5)}, r"allow_pickle"),
    ],
)
def test_other_files_are_refused(others: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    path = save_wiring(tmp_path / "wiring.npz", **others)
    with pytest.raises(ValueError, match=rf"wiring.npz must be a file of wirings.*{complaint}"):
        read_wiring(path)


def test_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "wiring.npz"
    np.save(tmp_path / "one.npy", np.zeros(3))
    for content in (b"", b"words", b"PK\x03\x04 torn", (tmp_path / "one.npy").read_bytes()):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="must be a file of wirings"):
            read_wiring(path)
    with pytest.raises(FileNotFoundError):
        read_wiring(tmp_path / "none.npz")


@pytest.mark.parametrize(
    ("steps", "chosen"),
    [
        ((0, 100, 400), [0, 1, 4]),
        ((0, 149, 151, 9999), [0, 1, 2, 4]),
        ((390, 400, 410, 0), [4, 0]),
    ],
)
def test_the_nearest_frames_are_taken_once(
    steps: tuple[int, ...], chosen: list[int], tmp_path: Path
) -> None:
    frames = saved(tmp_path)
    assert nearest(frames.step, steps) == chosen
    panels = [axis for axis in wiring_figure(frames, steps).axes if axis.axison]
    titles = [f"{100 * number:,} batches" for number in chosen]
    assert [panel.get_title() for panel in panels] == titles


def test_wires_are_drawn_where_and_as_wide_as_they_are(tmp_path: Path) -> None:
    frames = saved(tmp_path, step=np.array([0, 1, 2, 3, 9000]))
    figure = wiring_figure(frames, (9000,))
    figure.savefig(tmp_path / "wiring.png")
    axis = figure.axes[0]
    diamonds, ellipses, points = axis.collections
    # The input index goes right and the output index down: columns come first.
    spots = sorted({(int(col), int(row)) for row, col in frames.indices[4]})
    assert sorted(map(tuple, np.asarray(diamonds.get_offsets()).tolist())) == spots
    assert len(spots) < 12
    for drawn in (ellipses, points):
        np.testing.assert_array_equal(drawn.get_offsets(), frames.means[4][:, ::-1])
    # In pixels on paper, the radii of an ellipse are its standard deviations.
    pixels_per_index = axis.bbox.width / 4
    radii = np.asarray(ellipses.get_transforms())[:, [0, 1], [0, 1]]
    scale = ellipses.get_transform().get_matrix()  # pyright: ignore
    radii = np.abs(radii * [scale[0, 0], scale[1, 1]]) / pixels_per_index
    np.testing.assert_allclose(radii, np.sqrt(frames.variances[4])[:, ::-1], rtol=1e-3)
    assert diamonds.get_zorder() < ellipses.get_zorder() < points.get_zorder()
    assert axis.get_xlim() == (-0.5, 3.5)
    assert axis.get_ylim() == (5.5, -0.5)
    assert axis.get_aspect() == 1
    assert axis.get_title() == "9,000 batches"


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7])
def test_titles_and_labels_are_inside_of_the_picture(count: int, tmp_path: Path) -> None:
    frames = saved(tmp_path, frames=7, sizes=(9, 9))
    figure = wiring_figure(frames, [100 * i for i in range(count)])
    figure.savefig(tmp_path / "wiring.png")
    page, box = figure.bbox, figure.get_tightbbox()
    assert 0 <= box.x0 < box.x1 <= page.width / figure.dpi
    assert 0 <= box.y0 < box.y1 <= page.height / figure.dpi


def test_the_rounded_matrix_is_that_of_the_layer(tmp_path: Path) -> None:
    layer = sw.SparseLayer((7,), (5,), tuples=30, seed=3).eval()
    wiring, drawn = layer.wiring(), layer.sample(mode="sampled")
    path = save_wiring(
        tmp_path / "wiring.npz",
        step=np.array([0]),
        shape=np.array([5, 7]),
        indices=drawn.indices.numpy(),
        **{name: getattr(wiring, name)[None].detach().numpy() for name in wiring._fields},
    )
    matrix = rounded_matrix(read_wiring(path))
    np.testing.assert_allclose(matrix, layer.freeze().dense().numpy(), rtol=1e-6)


def test_the_matrix_has_symmetric_colours(tmp_path: Path) -> None:
    values = np.array([[9.0, 9.0, 9.0]] * 4 + [[0.5, -3.0, 0.25]], dtype=np.float32)
    means = np.zeros((5, 3, 2), dtype=np.float32)
    means[-1] = [(0.2, 0.4), (2.6, 1.4), (-0.4, 0.1)]
    figure = matrix_figure(saved(tmp_path, values=values, means=means))
    (image,) = figure.axes[2].images
    expected = np.zeros((6, 4))
    expected[0, 0], expected[3, 1] = 0.75, -3.0
    np.testing.assert_array_equal(image.get_array(), expected)
    assert image.get_clim() == (-3.0, 3.0)
    titles = [axis.get_title() for axis in figure.axes[:3]]
    assert titles == ["before training", "after 400 batches", "the rounded matrix"]
    (image,) = matrix_figure(saved(tmp_path, values=0 * values)).axes[2].images
    assert image.get_clim() == (-1.0, 1.0)


def test_a_matrix_too_large_for_memory_is_refused(tmp_path: Path) -> None:
    frames = saved(tmp_path, sizes=(65_536, 65_536))
    with pytest.raises(ValueError, match=r"at most 16,777,216 el.* got shape \(65536, 65536\)"):
        matrix_figure(frames)
    assert save(wiring_figure(frames, (0,)), tmp_path / "wiring.png").exists()


@pytest.mark.parametrize("count", [1, 5])
def test_the_animation_shows_every_frame_and_rests(count: int, tmp_path: Path) -> None:
    made = animate_wiring(saved(tmp_path, frames=count), tmp_path / "wires.gif", 5)
    times = []
    with Image.open(made) as gif:
        assert gif.info["loop"] == 0
        for frame in ImageSequence.Iterator(gif):
            times.append(frame.info["duration"])
            assert frame.convert("RGB").getpixel((0, 0)) == (255, 255, 255)
    assert times == [200] * (count - 1) + [2000]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["wires.gif", "wiring.npz"]


def test_a_long_run_is_thinned_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsewire_lab.identity.wiring._MOST_FRAMES", 3)
    drawn = []
    monkeypatch.setattr(
        "sparsewire_lab.identity.wiring.draw_wires",
        lambda axis, frames, number, _: drawn.append(number),
    )
    animate_wiring(saved(tmp_path, frames=9), tmp_path / "wires.gif")
    assert drawn == [0, 4, 8]


def test_what_is_no_animation_is_refused(tmp_path: Path) -> None:
    frames = saved(tmp_path)
    for rate in (0, 51):
        with pytest.raises(ValueError, match=f"frames_per_second must be from 1 to 50; got {rate}"):
            animate_wiring(frames, tmp_path / "wires.gif", rate)
    with pytest.raises(ValueError, match=r"path must end in \.gif; got .*wires\.png"):
        animate_wiring(frames, tmp_path / "wires.png")
