"""The curves of the sorting experiment: every point where its number is, a name for each line."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab.tests.figures.samples import make_sorting, title, words
from matplotlib.axes import Axes

from sparsewire_lab.figures.save import save
from sparsewire_lab.sorting.curves import sorting_figure
from sparsewire_lab.sorting.settings import METHODS

FALLING = [0.9, 0.2, 0.05, 0.02]
KINDS = ["equal numbers in any order", "strict: equal ones as they came"]
PAPER = "about what the paper reports"


def curves(axis: Axes) -> list[np.ndarray]:
    """The lines of errors; those of bars' ends and of the paper have no more than two points."""
    return [
        np.asarray(line.get_xydata())
        for line in axis.lines
        if line.get_linestyle() != "None" and len(np.asarray(line.get_xdata())) > 2
    ]


def bars(axis: Axes) -> list[tuple[float, float, float]]:
    """Where each bar is, and from where to where it goes."""
    found = []
    for collection in axis.collections:
        for path in collection.get_paths():
            (x, low), (_, high) = np.asarray(path.vertices).tolist()
            found.append((x, low, high))
    return sorted(found)


def test_errors_are_drawn_where_they_are() -> None:
    """Means over the seeds; bars are mean ± one deviation. Of 1 and 3 it is √2."""
    runs = [
        make_sorting([0.9, 0.03, 0.01], strict=[1.0, 0.08, 0.04]),
        make_sorting([0.9, 0.01, 0.03], strict=[1.0, 0.04, 0.08], seed=1),
    ]
    figure = sorting_figure(runs)
    (axis,) = figure.axes
    ties, strict = curves(axis)
    np.testing.assert_allclose(ties, [(0, 90), (100, 2), (200, 2)])
    np.testing.assert_allclose(strict, [(0, 100), (100, 6), (200, 6)])
    one, two = math.sqrt(2), math.sqrt(8)
    want = [(0, 90, 90), (0, 100, 100), (100, 2 - one, 2 + one), (100, 6 - two, 6 + two)]
    want += [(200, 2 - one, 2 + one), (200, 6 - two, 6 + two)]
    np.testing.assert_allclose(bars(axis), want)
    assert axis.get_yscale() == "log"
    assert axis.get_title() == "16 numbers of 3 digits"
    assert axis.get_ylabel() == "test sets not in order, %"
    assert axis.get_xlabel() == "iterations of training"
    assert words(figure) == ["likelihood", *KINDS, PAPER]
    assert title(figure) == "bars: one standard deviation over seeds"


def test_both_errors_look_different_in_one_colour() -> None:
    """A run without the strict error has one line."""
    run = make_sorting(FALLING, strict=[0.9, 0.3, 0.1, 0.1], places=2)
    ties, strict = sorting_figure([run]).axes[0].lines
    assert ties.get_color() == strict.get_color()
    assert (ties.get_linestyle(), strict.get_linestyle()) == ("-", "--")
    assert (ties.get_marker(), strict.get_marker()) == ("o", "")
    del run["curve"]["strict"]
    assert len(sorting_figure([run]).axes[0].lines) == 1


def test_bars_that_would_reach_zero_end_before(tmp_path: Path) -> None:
    """A logarithm has no place for them: of 1 and 9 %, mean 5, the deviation is 5.7."""
    runs = [make_sorting([0.9, 0.01]), make_sorting([0.9, 0.09], seed=1)]
    (axis,) = sorting_figure(runs).axes
    assert all(0 < low <= high for _, low, high in bars(axis))
    assert max(high for x, _, high in bars(axis) if x) == pytest.approx(5 + math.sqrt(32))
    save(sorting_figure(runs), tmp_path / "errors.png")


@pytest.mark.parametrize("sizes", [[4], [4, 8], [4, 8, 16], [4, 8, 16, 32], [3, 5, 7, 9, 15]])
def test_every_size_has_a_panel(sizes: list[int], tmp_path: Path) -> None:
    runs = [
        make_sorting([0.9, 0.01 * size], key=f"{size}{method}", size=size, method=method)
        for size in sizes
        for method in ("likelihood", "odd_even")
    ]
    figure = sorting_figure(runs[::-1])
    assert [axis.get_title() for axis in figure.axes] == [
        f"{size} numbers of 3 digits" for size in sizes
    ]
    for axis, size in zip(figure.axes, sizes, strict=True):
        ends = [np.asarray(line.get_ydata())[-1] for line in axis.lines[:4]]
        np.testing.assert_allclose(ends, size)
    # The same setting has the same look in all of them, and one entry in the legend.
    assert words(figure)[:4] == ["likelihood", "odd-even network", *KINDS]
    for number in (0, 2):
        assert len({axis.lines[number].get_color() for axis in figure.axes}) == 1
    figure.savefig(tmp_path / "errors.png")
    box = figure.get_tightbbox()
    assert 0 <= box.x0 < box.x1 <= 8.0
    assert box.y0 >= 0


def test_every_method_has_a_name_a_colour_and_a_marker() -> None:
    """Of many settings one error is drawn."""
    runs = [make_sorting(FALLING, key=method, method=method) for method in METHODS]
    figure = sorting_figure(runs[::-1])
    assert words(figure)[: len(METHODS)] == list(METHODS.values())
    lines: list[Any] = [line for line in figure.axes[0].lines if line.get_marker()]
    assert len({line.get_color() for line in lines[:9]}) == 9
    assert len({line.get_marker() for line in lines if line.get_marker() != "None"}) == 9
    few, many = sorting_figure(runs[:4]), sorting_figure(runs[:5])
    assert (len(curves(few.axes[0])), len(curves(many.axes[0]))) == (8, 5)
    assert words(few)[4:] == [*KINDS, PAPER]
    assert words(many)[5:] == [KINDS[0], PAPER]


def test_settings_of_one_method_are_filled_differently() -> None:
    runs = [make_sorting(FALLING, key=str(lr), lr=lr) for lr in (0.1, 0.2)]
    runs.append(make_sorting(FALLING, key="paper", preset="paper"))
    figure = sorting_figure(runs)
    names = ["likelihood, lr 0.1", "likelihood, lr 0.2", "likelihood, paper's settings"]
    assert words(figure)[:3] == names
    lines: list[Any] = figure.axes[0].lines[::2][:3]
    assert [line.get_fillstyle() for line in lines] == ["full", "none", "left"]
    assert len({line.get_color() for line in lines}) == 1


@pytest.mark.parametrize(("size", "level"), [(4, 10), (8, 10), (16, 40), (32, None)])
def test_the_paper_s_error_has_a_line(size: int, level: float | None) -> None:
    runs = [make_sorting(FALLING, size=size), make_sorting(FALLING, key="b", size=size, lr=0.1)]
    figure = sorting_figure(runs)
    assert (PAPER in words(figure)) == (level is not None)
    found = [line.get_ydata() for line in figure.axes[0].lines[4:]]
    assert found == ([] if level is None else [[level, level]])
    peer = sorting_figure([make_sorting(FALLING, size=size, method="softsort")])
    assert PAPER not in words(peer)


def test_what_was_searched_makes_room_for_presets() -> None:
    """A setting of the paper, a peer, and ours are drawn, however well others do."""
    runs = [
        make_sorting([0.9, 0.01], key=str(number), lr=0.01 * (1 + number)) for number in range(12)
    ]
    runs += [
        make_sorting([0.9, 0.5], key="ours"),
        make_sorting([0.9, 0.6], key="paper", preset="paper", method="sampled", lr=0.1),
        make_sorting([0.9, 0.7], key="peer", method="odd_even"),
    ]
    found = words(sorting_figure(runs))
    shown = ["likelihood", "sampled quicksort, paper's settings, lr 0.1", "odd-even network"]
    assert set(shown) <= set(found)
    assert title(sorting_figure(runs)) == "the best 10 of 15 settings"


def test_runs_of_fewer_steps_have_a_panel_of_their_own(tmp_path: Path) -> None:
    """With all others of that length, to be compared fairly."""
    runs = [
        make_sorting([0.9, 0.01], key="a", steps=20_000, evaluate_every=1000),
        make_sorting([0.9, 0.02], key="b", steps=6000, evaluate_every=500),
        make_sorting([0.9, 0.03], key="c", steps=12_000, method="odd_even"),
        make_sorting([0.9, 0.04], key="d", steps=6000, method="odd_even"),
        make_sorting([0.9, 0.05], key="e", steps=6000, method="softsort"),
        make_sorting([0.9, 0.06], key="f", steps=8000, method="sampled", preset="paper"),
        make_sorting([0.9, 0.07], key="g", steps=6000, size=32),
    ]
    figure = sorting_figure(runs)
    titles = [axis.get_title() for axis in figure.axes]
    assert titles == [
        "16 numbers of 3 digits",
        "16 numbers of 3 digits,\n6,000 steps",
        "32 numbers of 3 digits",
    ]
    ends = [[round(np.asarray(y.get_ydata())[-1]) for y in axis.lines] for axis in figure.axes]
    assert [line[: 2 * count : 2] for line, count in zip(ends, (3, 3, 1), strict=True)] == [
        [1, 6, 3],
        [2, 5, 4],
        [7],
    ]
    names = ["likelihood", "sampled quicksort, paper's settings", "SoftSort", "odd-even network"]
    assert words(figure)[:4] == names
    save(sorting_figure(runs), tmp_path / "errors.png")


def test_what_all_settings_share_is_said_once() -> None:
    runs = [
        make_sorting(FALLING, key=f"{size}{method}", size=size, method=method, jitter=0.0)
        for size in (3, 5)
        for method in ("likelihood", "odd_even")
    ]
    figure = sorting_figure(runs)
    assert words(figure)[:2] == ["likelihood", "odd-even network"]
    assert title(figure) == "all: jitter 0"
    runs.append(make_sorting(FALLING, key="e"))
    assert words(sorting_figure(runs))[:2] == ["likelihood, jitter 0", "likelihood"]
    runs = [make_sorting(FALLING, key=data, places=1, data=data) for data in ("mnist", "digits")]
    figure = sorting_figure(runs)
    assert figure.axes[0].get_title() == "16 numbers of 1 small digit or 1 digit"
    assert words(figure)[:2] == ["likelihood, mnist", "likelihood, digits"]
