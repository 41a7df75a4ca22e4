"""The curves of the attention experiment: every point where its number is, a name for each line."""

import math
from pathlib import Path

import numpy as np
import pytest
from lab.tests.figures.samples import make_attention
from matplotlib.figure import Figure
from PIL import Image

from sparsewire_lab.attention.curves import attention_figure
from sparsewire_lab.figures.save import save

FALLING = [0.9, 0.2, 0.05, 0.01]


def words(figure: Figure) -> list[str]:
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def title(figure: Figure) -> str:
    return figure.legends[0].get_title().get_text()


def test_errors_are_drawn_where_they_are(tmp_path: Path) -> None:
    """Means over the seeds of error and of seconds; the band is mean ± one deviation."""
    runs = [make_attention([0.9, 0.03, 0.01]), make_attention([0.9, 0.01, 0.03], seed=1)]
    runs[1]["curve"]["seconds"] = [0.5, 2.0, 4.0]
    figure = attention_figure(runs)
    axis = figure.axes[0]
    np.testing.assert_allclose(
        np.asarray(axis.lines[0].get_xydata()), [(0.25, 90), (1.5, 2), (3.0, 2)]
    )
    (band,) = axis.collections
    edges = band.get_paths()[0].vertices
    deviation = math.sqrt(2)  # of 1 and 3
    for seconds, error, half in ((0.25, 90, 0), (1.5, 2, deviation), (3.0, 2, deviation)):
        there = sorted(y for x, y in np.asarray(edges).tolist() if x == seconds)
        assert there[0] == pytest.approx(error - half)
        assert there[-1] == pytest.approx(error + half)
    assert axis.get_yscale() == "log"
    assert axis.get_ylim()[0] == 1
    labels = [tick.get_text() for tick in axis.get_yticklabels()]
    assert labels == ["1", "2", "5", "10", "20", "50", "100"]
    assert axis.get_ylabel() == "test error in %, canvases of 100 × 100"
    assert title(figure) == "bands: one standard deviation over seeds"
    with Image.open(save(figure, tmp_path / "new" / "errors.png")) as picture:
        assert picture.width == 1200
        assert picture.convert("RGB").getpixel((0, 0)) == (255, 255, 255)


def test_company_on_the_device_is_said() -> None:
    runs = [
        make_attention(FALLING, other={"at_once": 3}),
        make_attention(FALLING, key="b", model="convnet", other={"at_once": 5}),
    ]
    assert title(attention_figure(runs)) == "3 to 5 runs shared the device"
    assert title(attention_figure(runs[:1])) == "3 runs shared the device"
    alone = make_attention(FALLING, key="c", model="reinforce")
    assert title(attention_figure([*runs, alone])) == "1 to 5 runs shared the device"


def test_one_seed_has_no_band() -> None:
    figure = attention_figure([make_attention(FALLING)])
    assert not figure.axes[0].collections
    assert title(figure) == ""


@pytest.mark.parametrize("errors", [[0.0, 0.0], [0.9, 0.02, 0.0], [0.9, 0.00001]])
def test_zero_has_a_place(errors: list[float], tmp_path: Path) -> None:
    runs = [make_attention(errors), make_attention([*errors[:-1], 0.004], seed=1)]
    figure = attention_figure([runs[0]])
    axis = figure.axes[0]
    low, high = axis.get_ylim()
    assert axis.get_yscale() == "symlog"
    assert low < 0 < high
    assert axis.get_yticklabels()[0].get_text() == "0"
    # The deviation is larger than the mean of the last point: its band would end below zero.
    (band,) = attention_figure(runs).axes[0].collections
    assert np.asarray(band.get_paths()[0].vertices)[:, 1].min() >= 0
    save(attention_figure(runs), tmp_path / "errors.png")


def test_every_model_has_a_name_a_colour_and_a_line() -> None:
    models = {
        "plain ConvNet": {"model": "convnet"},
        "1 glimpse of 32 × 32": {},
        "1 glimpse of 32 × 32, paper's settings": {"preset": "paper"},
        "8 glimpses of 12 × 12": {"glimpses": 8, "size": 12},
        "spatial transformer": {"model": "transformer"},
        "REINFORCE glimpse": {"model": "reinforce"},
        "1 glimpse of 9 × 9": {"size": 9},
    }
    runs = [make_attention(FALLING, key=name, **setting) for name, setting in models.items()]
    figure = attention_figure(runs[::-1])
    assert set(words(figure)) == set(models)
    lines = {str(line.get_label()): line for line in figure.axes[0].lines}
    paper = lines.pop("1 glimpse of 32 × 32, paper's settings")
    assert len({line.get_color() for line in lines.values()}) == 6
    assert len({str(line._unscaled_dash_pattern) for line in lines.values()}) == 6  # pyright: ignore
    ours = lines["1 glimpse of 32 × 32"]
    assert (paper.get_color(), paper.get_marker()) == (ours.get_color(), "o")
    assert ours.get_marker() == ""


def test_runs_that_diverged_are_counted_and_left_out() -> None:
    bad = make_attention([0.9, 0.9], seed=1, other={"status": "diverged"})
    figure = attention_figure([make_attention([0.9, 0.02]), bad])
    assert words(figure) == ["1 glimpse of 32 × 32 (1 of 2 diverged)"]
    np.testing.assert_allclose(np.asarray(figure.axes[0].lines[0].get_ydata()), [90, 2])


def test_of_many_settings_the_best_are_drawn() -> None:
    errors = [0.01 * (1 + number * 7 % 15) for number in range(15)]
    runs = [
        make_attention([0.9, error], key=str(number), split="validation", lr=0.001 * (1 + number))
        for number, error in enumerate(errors)
    ]
    figure = attention_figure(runs)
    ends = [np.asarray(line.get_ydata())[-1] for line in figure.axes[0].lines]
    np.testing.assert_allclose(sorted(ends), np.arange(1, 13))
    assert title(figure) == "the best 12 of 15 settings"
    assert figure.axes[0].get_ylabel().startswith("validation error")


def test_short_runs_are_seen_beside_long_ones() -> None:
    short = make_attention(FALLING, model="convnet", key="b")
    similar = attention_figure([short, make_attention(FALLING, every=500)]).axes[0]
    assert similar.get_xscale() == "linear"
    wide = attention_figure([short, make_attention(FALLING, every=10_000)]).axes[0]
    assert wide.get_xscale() == "symlog"
    ticks = [tick.get_text() for tick in wide.get_xticklabels()]
    assert ticks == ["0", "1", "10", "100"]


def test_long_names_stay_inside_of_the_picture(tmp_path: Path) -> None:
    runs = [
        make_attention(FALLING, key=head, head=head, reduce=4, preset="paper", canvas=400)
        for head in ("mlp", "conv")
    ]
    figure = attention_figure(runs)
    figure.savefig(tmp_path / "errors.png")
    box = figure.get_tightbbox()
    assert 0 <= box.x0 < box.x1 <= 8.0
    assert words(figure)[1] == (
        "1 glimpse of 32 × 32, chosen on the image reduced 4 ×, paper's settings, conv head"
    )


def test_nothing_to_show_is_said() -> None:
    diverged = make_attention(FALLING, other={"status": "diverged"})
    untimed = make_attention(FALLING, key="b")
    del untimed["curve"]["seconds"]
    other = make_attention(FALLING, other={"experiment": "identity"})
    with pytest.raises(ValueError, match=r"that did not diverge.* got 4 records, none of these"):
        attention_figure([diverged, untimed, other, make_attention([None], key="c")])
