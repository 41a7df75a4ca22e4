"""What the error curves of glimpses and of sorting share: scales, bests, what is left out."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from lab.tests.figures.samples import make_attention, make_sorting, title, words
from matplotlib.figure import Figure
from PIL import Image

from sparsewire_lab.attention.curves import attention_figure
from sparsewire_lab.figures.save import save
from sparsewire_lab.sorting.curves import sorting_figure

FALLING = [0.9, 0.2, 0.05, 0.02]


class Case(NamedTuple):
    figure: Callable[[Sequence[dict]], Figure]
    make: Callable[..., dict[str, Any]]
    most: int
    label: str
    ticks: list[str]


CASES = [
    Case(attention_figure, make_attention, 12, "validation error", ["0", "1", "10", "100"]),
    Case(sorting_figure, make_sorting, 10, "validation sets", ["0", "100", "1,000", "10,000"]),
]
of_both = pytest.mark.parametrize("case", CASES, ids=["attention", "sorting"])


@of_both
def test_one_seed_has_no_deviation(case: Case, tmp_path: Path) -> None:
    figure = case.figure([case.make(FALLING)])
    assert not figure.axes[0].collections
    assert title(figure) == ""
    with Image.open(save(figure, tmp_path / "new" / "errors.png")) as picture:
        assert picture.width == 1200
        assert picture.convert("RGB").getpixel((0, 0)) == (255, 255, 255)


@of_both
@pytest.mark.parametrize("errors", [[0.0, 0.0], [0.9, 0.02, 0.0], [0.9, 0.00001]])
def test_zero_has_a_place(case: Case, errors: list[float], tmp_path: Path) -> None:
    """The deviation is larger than the mean of the last point: it would end below zero."""
    axis = case.figure([case.make(errors)]).axes[0]
    low, high = axis.get_ylim()
    assert axis.get_yscale() == "symlog"
    assert low < 0 < high
    assert axis.get_yticklabels()[0].get_text() == "0"
    figure = case.figure([case.make(errors), case.make([*errors[:-1], 0.004], seed=1)])
    drawn = [path.vertices for part in figure.axes[0].collections for path in part.get_paths()]
    assert min(np.asarray(part)[:, 1].min() for part in drawn) >= 0
    save(figure, tmp_path / "errors.png")


@of_both
def test_runs_that_diverged_are_counted_and_left_out(case: Case) -> None:
    bad = case.make([0.9, 0.9], seed=1, other={"status": "diverged"})
    figure = case.figure([case.make([0.9, None, 0.02]), bad])
    assert "1 of 2 diverged" in f"{words(figure)[0]} {title(figure)}"
    np.testing.assert_allclose(np.asarray(figure.axes[0].lines[0].get_ydata()), [90, 2])


@of_both
def test_of_many_settings_the_best_are_drawn(case: Case) -> None:
    errors = [0.01 * (1 + number * 7 % 15) for number in range(15)]
    runs = [
        case.make([0.9, error], key=str(number), split="validation", lr=0.0011 * (1 + number))
        for number, error in enumerate(errors)
    ]
    figure = case.figure(runs)
    ends = [np.asarray(line.get_ydata())[-1] for line in figure.axes[0].lines[: case.most]]
    np.testing.assert_allclose(sorted(ends), np.arange(1, case.most + 1))
    assert title(figure) == f"the best {case.most} of 15 settings"
    assert figure.axes[0].get_ylabel().startswith(case.label)


@of_both
def test_short_runs_are_visible_next_to_long_ones(case: Case) -> None:
    short = case.make(FALLING, key="b", lr=0.1)
    assert case.figure([short, case.make(FALLING, every=500)]).axes[0].get_xscale() == "linear"
    wide = case.figure([short, case.make(FALLING, every=10_000)]).axes[0]
    assert wide.get_xscale() == "symlog"
    assert [tick.get_text() for tick in wide.get_xticklabels()] == case.ticks


@of_both
def test_nothing_to_show_is_refused(case: Case) -> None:
    diverged = case.make(FALLING, other={"status": "diverged"})
    incomplete = case.make(FALLING, key="b")
    del incomplete["curve"]["seconds" if case.make is make_attention else "error"]
    other = case.make(FALLING, other={"experiment": "identity"})
    runs = [diverged, incomplete, other, case.make([None], key="c")]
    with pytest.raises(ValueError, match=r"that did not diverge.* got 4 records, none of these"):
        case.figure(runs)
