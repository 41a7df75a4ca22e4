"""Arguments of the attention experiment that are refused: what has no effect, or cannot be."""

import re
from pathlib import Path
from typing import Any

import pytest
from lab.tests.attention.trials import LOOKING, MODELS, checked, of_every_model

from sparsewire_lab.attention.experiment import Attention

ONLY: dict[str, tuple[Any, tuple[str, ...]]] = {
    "glimpses": (2, ("glimpse", "reinforce")),
    "deviation": (0.2, ("reinforce",)),
    **dict.fromkeys(("source_rate", "frame_rate"), (0.5, LOOKING)),
    "size": (5, LOOKING),
    "head": ("mlp", LOOKING),
    "dropout": (0.1, LOOKING),
    "source": ("convnet", LOOKING),
    "cover": (0.5, ("glimpse", "transformer")),
    "zoom": (0.5, ("glimpse", "transformer")),
    "frame": ("affine", ("glimpse", "transformer")),
    "squash": ("corners", ("glimpse", "transformer")),
    **dict.fromkeys(("scale", "floor", "settle", "straight"), (0.5, ("glimpse",))),
    "hold": (0.25, ("glimpse",)),
    "region": (4, ("glimpse",)),
    **dict.fromkeys(("local_samples", "global_samples"), (1, ("glimpse",))),
    "spread": (0.5, MODELS),
}


@of_every_model
@pytest.mark.parametrize("name", ONLY)
def test_arguments_without_effect_are_refused(name, model):
    value, models = ONLY[name]
    args = Attention(model=model, **{name: value})
    if model in models:
        args.check()
        assert getattr(args, name) == value
    else:
        only = f"{name} has a meaning with model {' or '.join(models)} only; got {model}"
        with pytest.raises(ValueError, match=f"^{only}$"):
            args.check()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"glimpses": 0}, "glimpses must be at least 1; got 0"),
    ({"size": 0}, "size must be at least 1; got 0"),
    ({"width": 2**40}, "width must be at most 16,777,216; got 1,099,511,627,776"),
    ({"glimpses": 2**40}, "glimpses must be at most 16,777,216; got 1,099,511,627,776"),
    ({"canvas": 0}, "canvas must be at least 1; got 0"),
    ({"canvas": 50}, "canvas must be one of 60, 100, 400; got 50"),
    ({"reduce": 0}, "reduce must be at least 1; got 0"),
    ({"region": 0}, "region must be at least 1; got 0"),
    ({"cover": 0.0}, "cover must be between 0.001 and 0.999; got 0.0"),
    ({"cover": 1.0}, "cover must be between 0.001 and 0.999; got 1.0"),
    ({"dropout": 1.5}, "dropout must be between 0 and 1; got 1.5"),
    ({"settle": -0.5}, "settle must be between 0 and 1; got -0.5"),
    ({"straight": 1.5}, "straight must be between 0 and 1; got 1.5"),
    ({"spread": 1.5}, "spread must be between 0 and 1; got 1.5"),
    ({"zoom": -1.0}, "zoom must be between 0 and 1e+06; got -1.0"),
    ({"floor": -1.0}, "floor must be between 0 and 1e+06; got -1.0"),
    ({"scale": -1.0}, "scale must be between 0 and 1e+06; got -1.0"),
    ({"hold": 1.5}, "hold must be between 0 and 1; got 1.5"),
    ({"until": 0.1}, "until would choose by the test digits when to stop"),
    ({"data": "digits", "mnist": Path("x")}, "mnist is a folder for --data mnist; got digits"),
    ({"lr": 0.0}, "lr must be above 0; got 0.0"),
    ({"batch": 0}, "batch must be at least 1; got 0"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED, ids=[r[1] for r in REFUSED])
def test_arguments_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Attention(**options).check()


def test_a_glimpse_larger_than_the_canvas_is_refused():
    with pytest.raises(ValueError, match="size must be at most 60, the canvas; got 61"):
        Attention(canvas=60, size=61).resolved()
    assert Attention(canvas=60, size=60).resolved().size == 60


def test_variances_that_fall_before_they_were_held_are_refused():
    with pytest.raises(ValueError, match=r"^hold must be below settle, 0.25; got 0.5$"):
        Attention(hold=0.5, settle=0.25).resolved()
    assert Attention(hold=0.5, settle=0.0).resolved().hold == 0.5


@pytest.mark.parametrize("model", ["glimpse", "transformer"])
@pytest.mark.parametrize(
    "options",
    [{"frame": "affine"}, {"frame": "quadrangle"}, {"squash": "corners"}, {"squash": "points"}],
)
@pytest.mark.parametrize("source", [{}, {"source": "finder"}])
def test_a_finder_returns_boxes_that_are_not_bounded(model, options, source):
    """Whether it was asked for or not; a convnet tells the others too."""
    frame, squash = options.get("frame", "box"), options.get("squash", "none")
    message = (
        f"^source finder returns boxes that are not bounded; got frame {frame}, squash {squash}$"
    )
    if model == "transformer" and squash == "points":
        message = r"^squash must be corners or none with model transformer; got points$"
    with pytest.raises(ValueError, match=message):
        checked(Attention(model=model, **source, **options))


@pytest.mark.parametrize("preset", ["ours", "paper"])
def test_a_finder_takes_what_it_tells(preset):
    args = Attention(preset=preset, source="finder", frame="box", squash="none")
    assert checked(args).squash == "none"


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"model": "reinforce", "deviation": 0.0}, "deviation"),
        ({"local_samples": -1}, "local_samples"),
        ({"global_samples": -1}, "global_samples"),
        ({"head": "conv", "size": 3}, "size"),
        ({"canvas": 60, "reduce": 100}, "reduce"),
        ({"source_rate": -1.0}, "source_rate"),
        ({"frame_rate": -1.0}, "frame_rate"),
        ({"model": "transformer", "source": "convnet", "squash": "points"}, "squash"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(options, name):
    with pytest.raises(ValueError, match=f"^{name} must be"):
        checked(Attention(**options))


def test_validation_digits_may_say_when_to_stop():
    args = Attention(split="validation", until=0.1)
    assert checked(args).until == 0.1
