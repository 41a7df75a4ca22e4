"""The arguments of the attention experiment: what is filled in, what stays, what decides."""

import dataclasses
import math
from pathlib import Path
from typing import Any, get_args

import pytest
from lab.tests.attention.trials import of_every_looking_model, of_every_model

from sparsewire_lab.attention.experiment import PRESETS, Attention
from sparsewire_lab.data.experiment import Preset
from sparsewire_lab.train.options import Experiment

of_every_preset = pytest.mark.parametrize("preset", PRESETS)


def test_the_paper_s_numbers():
    args = Attention(preset="paper").resolved()
    assert (args.lr, args.batch, args.head, args.source) == (1e-4, 128, "mlp", "convnet")
    assert (args.local_samples, args.global_samples, args.region) == (32, 16, 20)
    assert (args.glimpses, args.size, args.canvas, args.frame) == (1, 32, 100, "box")
    assert (args.settle, args.zoom, args.spread, args.cover) == (0.0, 0.0, 0.0, 0.8)
    assert Attention(preset="paper", glimpses=8).resolved().size == 12


@pytest.mark.parametrize("batch", [128, 100])
def test_the_paper_trains_for_70_epochs_and_we_for_20_000_steps(batch):
    """On small digits both take 400."""
    paper, ours = (Attention(preset=p, batch=batch).resolved() for p in ("paper", "ours"))
    assert (paper.steps, ours.steps) == (math.ceil(70 * 60_000 / batch), 20_000)
    for preset in get_args(Preset):
        assert Attention(preset=preset, batch=batch, data="digits").resolved().steps == 400


@of_every_preset
@pytest.mark.parametrize("data", ["mnist", "digits"])
@of_every_model
def test_nothing_is_left_open(model, data, preset):
    args = Attention(model=model, data=data, preset=preset)
    args.check()
    resolved = args.resolved()
    assert [k for k, v in resolved.arguments().items() if v is None] == ["until", "mnist"]
    assert resolved.resolved() == resolved
    own = {"squash"} | (set(ON_DIGITS) if (data, preset) == ("digits", "ours") else set())
    for name, value in PRESETS[preset].items():
        assert name in own or getattr(resolved, name) == value, name


def test_what_is_given_stays():
    given: dict[str, Any] = {
        "steps": 7, "lr": 0.5, "size": 9, "canvas": 400, "reduce": 2, "head": "mlp",
        "dropout": 0.25, "squash": "points", "region": 3, "scale": 0.5, "floor": 0.0,
        "settle": 0.0, "straight": 0.5, "hold": 0.25, "cosine": False, "source_rate": 0.5,
        "frame_rate": 0.25, "source": "convnet", "zoom": 0.125, "cover": 0.5, "spread": 0.75,
        "evaluate_every": 3, "local_samples": 0, "global_samples": 5, "deviation": 0.25,
    }  # fmt: skip
    for preset in get_args(Preset):
        resolved = Attention(preset=preset, **given).resolved()
        assert {name: getattr(resolved, name) for name in given} == given


@pytest.mark.parametrize(
    ("given", "canvas", "size", "reduce", "width"),
    [
        ({}, 100, 32, 1, 32),
        ({"glimpses": 8}, 100, 12, 1, 64),
        ({"glimpses": 8, "width": 5}, 100, 12, 1, 5),
        ({"canvas": 60}, 60, 32, 1, 32),
        ({"canvas": 400}, 400, 32, 2, 32),
        ({"data": "digits"}, 60, 12, 2, 32),
        ({"data": "digits", "canvas": 100}, 100, 12, 3, 32),
    ],
)
def test_sizes_follow_from_data_canvas_and_glimpses(given, canvas, size, reduce, width):
    made = Attention(**given).resolved()
    assert (made.canvas, made.size, made.reduce, made.width) == (canvas, size, reduce, width)


@pytest.mark.parametrize("canvas", [None, 60, 100])
def test_frames_cover_most_of_a_small_canvas_and_digits_lie_anywhere(canvas):
    resolved = Attention(canvas=canvas).resolved()
    assert (resolved.cover, resolved.spread, resolved.scale) == (0.8, 0.0, 0.01)


ON_DIGITS = {"cover": 0.5, "spread": 0.5, "source_rate": 1.0, "frame_rate": 3.0}


def test_small_digits_are_found_within_few_steps():
    resolved = Attention(data="digits").resolved()
    assert {name: getattr(resolved, name) for name in ON_DIGITS} == ON_DIGITS
    given = Attention(data="digits", cover=0.7).resolved()
    assert {name: getattr(given, name) for name in ON_DIGITS} == ON_DIGITS | {"cover": 0.7}
    paper = Attention(data="digits", preset="paper").resolved()
    assert (paper.cover, paper.spread, paper.source_rate) == (0.8, 0.0, 1.0)


ON_400 = {"cover": 0.25, "spread": 0.4, "scale": 0.0025}


@pytest.mark.parametrize("given", [{}, {"cover": 0.5}, {"spread": 0.0}, {"scale": 0.0}], ids=str)
def test_on_the_largest_canvas_frames_are_small_and_digits_spread(given):
    """Unless given, zeros too; what is not given stays that of the canvas."""
    resolved = Attention(canvas=400, **given).resolved()
    assert {n: getattr(resolved, n) for n in ON_400} == ON_400 | given


@of_every_looking_model
def test_our_finder_is_not_squashed_and_a_convnet_has_squashed_corners(model):
    assert Attention(model=model).resolved().squash == "none"
    plain = Attention(model=model, source="convnet").resolved()
    assert (plain.source, plain.squash) == ("convnet", "corners")
    assert Attention(preset="paper").resolved().squash == "points"
    assert Attention(preset="paper", source="finder").resolved().squash == "none"


@pytest.mark.parametrize("name", ["mnist", "keep_frames"])
def test_bookkeeping_leaves_the_key(name):
    other = {"mnist": Path("elsewhere"), "keep_frames": False}
    changed = dataclasses.replace(Attention().resolved(), **{name: other[name]})
    assert changed.key() == Attention().resolved().key()


# Two values of each; one of them is another than that of the preset.
DECIDING: dict[str, tuple[Any, Any]] = {
    "model": ("glimpse", "reinforce"), "preset": ("ours", "paper"), "glimpses": (1, 2),
    "size": (32, 7), "data": ("mnist", "digits"), "canvas": (100, 60), "reduce": (1, 2),
    "split": ("test", "validation"), "head": ("mlp", "conv"), "width": (32, 7),
    "dropout": (0.125, 0.25),
    "frame": ("box", "affine"), "squash": ("corners", "points"), "cover": (0.8, 0.5),
    "spread": (0.0, 0.5), "local_samples": (32, 1), "global_samples": (16, 1), "region": (3, 4),
    "scale": (0.75, 0.5), "floor": (0.75, 0.5), "settle": (0.125, 0.25), "straight": (0.125, 0.25),
    "hold": (0.0625, 0.03125), "zoom": (0.125, 0.25), "cosine": (False, True),
    "source_rate": (0.125, 0.25), "frame_rate": (0.125, 0.25), "source": ("finder", "convnet"),
    "deviation": (0.1, 0.5), "batch": (128, 64),
}  # fmt: skip


@pytest.mark.parametrize("name", DECIDING)
def test_what_decides_changes_the_key(name):
    args = Attention(device="cpu").resolved()
    other = next(value for value in DECIDING[name] if value != getattr(args, name))
    assert dataclasses.replace(args, **{name: other}).key() != args.key()


def test_every_argument_decides_or_is_bookkeeping():
    shared = Experiment.__annotations__.keys() - {"batch"}
    own = {field.name for field in dataclasses.fields(Attention)} - shared
    assert own == {*DECIDING, "mnist", "keep_frames"}


@pytest.mark.parametrize(
    ("options", "label"),
    [
        ({}, "glimpse 1x32 canvas 100 ours"),
        ({"glimpses": 8, "preset": "paper"}, "glimpse 8x12 canvas 100 paper"),
        ({"model": "convnet", "data": "digits"}, "convnet canvas 60 ours"),
        ({"model": "transformer", "size": 20}, "transformer 1x20 canvas 100 ours"),
        ({"model": "reinforce", "canvas": 400}, "reinforce 1x32 canvas 400 ours"),
    ],
)
def test_labels(options, label):
    assert Attention(**options).resolved().label() == label
