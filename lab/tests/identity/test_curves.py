"""The curves as drawn: every point where its number is, a key to all of them, whole files."""

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab.tests.figures.samples import make_identity, title, words
from matplotlib.figure import Figure
from PIL import Image

from sparsewire_lab.figures.save import save
from sparsewire_lab.identity.curves import error_figure, scaling_figure

FALLING = [2.0, 0.5, 0.1, 0.0, 0.0]


def bars(figure: Figure) -> list[Any]:
    return [bar.get_segments() for bar in figure.axes[0].collections]  # pyright: ignore


def test_errors_are_drawn_where_they_are(tmp_path: Path) -> None:
    runs = [make_identity([2.0, 1.0, 0.0]), make_identity([4.0, 0.0, 0.0], seed=1)]
    figure = error_figure(runs)
    axis = figure.axes[0]
    line = axis.lines[0]
    np.testing.assert_array_equal(line.get_xydata(), [(0, 3.0), (100, 0.5), (200, 0.0)])
    # The root of 2, and that of 1/2, which would end below zero.
    (drawn,) = bars(figure)
    ends = [(3 - math.sqrt(2), 3 + math.sqrt(2)), (0, 0.5 + math.sqrt(0.5)), (0, 0)]
    np.testing.assert_allclose([bar[:, 1] for bar in drawn], ends)
    low, high = axis.get_ylim()
    assert low < 0 < high == 10
    assert axis.get_yscale() == "symlog"
    assert [tick.get_text() for tick in axis.get_yticklabels()] == ["0", "0.01", "0.1", "1", "10"]
    with Image.open(save(figure, tmp_path / "new" / "errors.png")) as picture:
        assert picture.width == 1200
        assert picture.convert("RGB").getpixel((0, 0)) == (255, 255, 255)


def test_one_seed_has_no_bars_and_zero_alone_can_be_drawn(tmp_path: Path) -> None:
    figure = error_figure([make_identity(FALLING)])
    assert bars(figure) == []
    assert (title(figure), words(figure)) == ("sparse: size of the vectors", ["8"])
    runs = [make_identity([0.0], seed=seed) for seed in (0, 1)]
    assert save(error_figure(runs), tmp_path / "errors.png").stat().st_size > 500


def test_a_colour_for_each_size_and_a_line_for_each_method() -> None:
    runs = [
        make_identity(FALLING, size=size, method=method, lr=lr)
        for method in ("rewire", "sparse", "reinforce")
        for size in (8, 32, 1024)
        for lr in (0.1, 0.2)
    ]
    figure = error_figure(runs)
    lines = figure.axes[0].lines
    looks = {(line.get_color(), line.get_linestyle()) for line in lines}
    assert len(lines) == len(looks) == 9
    assert {style for _, style in looks} == {"-", "--", ":"}
    sizes = ["8, lr 0.1", "32, lr 0.1", "1,024, lr 0.1"]
    expected = [word for m in ("sparse", "reinforce", "rewire") for word in (m, *sizes)]
    assert (title(figure), words(figure)) == ("size of the vectors", expected)


def test_many_sizes_and_lengths_stay_apart(tmp_path: Path) -> None:
    runs = [
        make_identity([2.0 / (1 + i) for i in range(40)], size=2**p, every=2**p, seed=seed)
        for p in range(3, 17)
        for seed in (0, 1)
    ]
    figure = error_figure(runs)
    axis = figure.axes[0]
    assert axis.get_xscale() == "symlog"
    curves = [line for line in axis.lines if len(np.asarray(line.get_xdata())) == 40]
    assert len(curves) == len({line.get_color() for line in curves}) == 14
    assert "65,536" in words(figure)
    assert all(len(drawn) <= 5 for drawn in bars(figure))
    figure.savefig(tmp_path / "errors.png")
    boxes = [label.get_window_extent() for label in axis.get_xticklabels()]
    assert all(a.x1 < b.x0 for a, b in itertools.pairwise(boxes))


def test_same_size_and_method_differ_in_their_markers() -> None:
    runs = [make_identity(FALLING, target=target) for target in ("identity", "permutation", "band")]
    figure = error_figure(runs)
    assert len({str(line.get_marker()) for line in figure.axes[0].lines}) == 3
    assert words(figure) == ["8, identity", "8, permutation", "8, band"]
    similar = [make_identity(FALLING), make_identity(FALLING, size=16, every=1000)]
    assert error_figure(similar).axes[0].get_xscale() == "linear"


def test_scaling_marks_what_was_not_reached() -> None:
    runs = [
        make_identity(FALLING, size=8),
        make_identity([1.0, 1.0, 0.0], size=64),
        make_identity([1.0, 1.0, 1.0], size=512),
        make_identity([1.0, 0.0], size=8, method="rewire"),
    ]
    figure = scaling_figure(runs)
    seconds, steps = figure.axes
    filled, hollow, other = seconds.lines
    np.testing.assert_array_equal(filled.get_xydata(), [(8, 3.0), (64, 2.0), (512, 2.0)])
    np.testing.assert_array_equal(hollow.get_xydata(), [(512, 2.0)])
    assert hollow.get_markerfacecolor() == "white" != filled.get_markerfacecolor()
    np.testing.assert_array_equal(other.get_xydata(), [(8, 1.0)])
    np.testing.assert_array_equal(steps.lines[0].get_ydata(), [300, 200, 200])
    assert {axis.get_xscale() for axis in figure.axes} == {"log"}
    assert words(figure) == ["sparse", "rewire", "hollow: not reached, total of the run"]
    assert words(scaling_figure(runs[:2])) == ["sparse"]


def test_nothing_to_show_is_said(tmp_path: Path) -> None:
    """Of a sweep, scaling takes the best."""
    runs = [make_identity([1.0, 0.0], lr=0.1), make_identity([1.0, 0.5], lr=0.2)]
    (line,) = scaling_figure(runs).axes[1].lines
    assert line.get_ydata() == [100]
    for figure in (error_figure, scaling_figure):
        with pytest.raises(ValueError, match="records must hold runs of the identity experiment"):
            figure([])
    untimed = make_identity(FALLING)
    del untimed["curve"]["seconds"]
    with pytest.raises(ValueError, match="seconds on their curves; got 1 records"):
        scaling_figure([untimed])
    with pytest.raises(ValueError, match=r"path must end in .*\.png; got .*figure"):
        save(error_figure([make_identity(FALLING)]), tmp_path / "figure")
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "errors.png"
    path.write_text("old")

    def fail(self: Figure, name: Path) -> None:
        name.write_text("half")
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(Figure, "savefig", fail)
        with pytest.raises(OSError, match="no space left"):
            save(error_figure([make_identity(FALLING)]), path)
    assert path.read_text() == "old"
    save(error_figure([make_identity(FALLING)]), path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [file.name for file in tmp_path.iterdir()] == ["errors.png"]
