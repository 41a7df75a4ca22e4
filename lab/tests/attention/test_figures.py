"""The curves of the attention experiment: every point where its number is, a name for each line."""

import math
from pathlib import Path

import numpy as np
import pytest
from lab.tests.figures.samples import make_attention, title, words

from sparsewire_lab.attention.curves import attention_figure

FALLING = [0.9, 0.2, 0.05, 0.01]


def test_errors_are_drawn_where_they_are() -> None:
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


def test_company_on_the_device_is_said() -> None:
    runs = [
        make_attention(FALLING, other={"at_once": 3}),
        make_attention(FALLING, key="b", model="convnet", other={"at_once": 5}),
    ]
    assert title(attention_figure(runs)) == "3 to 5 runs shared the device"
    assert title(attention_figure(runs[:1])) == "3 runs shared the device"
    alone = make_attention(FALLING, key="c", model="reinforce")
    assert title(attention_figure([*runs, alone])) == "1 to 5 runs shared the device"


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
