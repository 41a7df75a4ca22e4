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


UNBOUNDED = "source finder returns boxes that are not bounded"
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
    ({"canvas": 60, "size": 61}, "size must be at most 60, the canvas; got 61"),
    ({"head": "conv", "size": 3}, "size must be at least 4 with head conv; got 3"),
    ({"hold": 0.5, "settle": 0.25}, "hold must be below settle, 0.25; got 0.5"),
    ({"model": "reinforce", "deviation": 0.0}, "deviation must be between 1e-06 and 1; got 0.0"),
    ({"local_samples": -1}, "local_samples must be at least 0; got -1"),
    ({"global_samples": -1}, "global_samples must be at least 0; got -1"),
    ({"canvas": 60, "reduce": 100}, "reduce must be at most 7, to leave 8 of 60 pixels; got 100"),
    ({"source_rate": -1.0}, "source_rate must be between 0 and 1e+06; got -1.0"),
    ({"frame_rate": -1.0}, "frame_rate must be between 0 and 1e+06; got -1.0"),
    (
        {"model": "transformer", "source": "convnet", "squash": "points"},
        "squash must be corners or none with model transformer; got points",
    ),
    ({"batch": 0}, "batch must be at least 1; got 0"),
    # A finder, asked for or not, returns boxes that are not bounded.
    ({"frame": "affine"}, f"{UNBOUNDED}; got frame affine, squash none"),
    ({"squash": "points"}, f"{UNBOUNDED}; got frame box, squash points"),
    (
        {"model": "transformer", "source": "finder", "frame": "quadrangle"},
        f"{UNBOUNDED}; got frame quadrangle, squash none",
    ),
    (
        {"model": "transformer", "squash": "corners"},
        f"{UNBOUNDED}; got frame box, squash corners",
    ),
]


@pytest.mark.parametrize(("options", "message"), REFUSED, ids=[r[1] for r in REFUSED])
def test_arguments_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        checked(Attention(**options))


@pytest.mark.parametrize(
    "options",
    [
        {"preset": "paper", "source": "finder", "frame": "box", "squash": "none"},
        {"canvas": 60, "size": 60},
        {"hold": 0.5, "settle": 0.0},
        {"split": "validation", "until": 0.1},
    ],
)
def test_what_is_just_within_bounds_is_accepted(options):
    args = checked(Attention(**options))
    assert {name: getattr(args, name) for name in options} == options
