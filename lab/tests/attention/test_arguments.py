"""The arguments of the attention experiment: what is filled in, what stays, what decides."""

import dataclasses
import math
from pathlib import Path
from typing import Any, get_args

import pytest
from lab.tests.attention.trials import LOOKING, of_every_model

from sparsewire_lab.attention.experiment import PRESETS, Attention
from sparsewire_lab.data.experiment import Preset
from sparsewire_lab.train.options import Experiment

# What is given, each other than our preset has it.
GIVEN: dict[str, Any] = {
    "lr": 0.5, "size": 9, "canvas": 400, "reduce": 2, "head": "mlp",
    "dropout": 0.25, "squash": "points", "region": 3, "scale": 0.5, "floor": 0.0,
    "settle": 0.0, "straight": 0.5, "hold": 0.25, "cosine": False, "source_rate": 0.5,
    "frame_rate": 0.25, "source": "convnet", "zoom": 0.125, "cover": 0.5, "spread": 0.75,
    "local_samples": 0, "global_samples": 5, "deviation": 0.25, "batch": 64,
}  # fmt: skip


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


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("data", ["mnist", "digits"])
@of_every_model
def test_nothing_is_left_open(model, data, preset):
    args = Attention(model=model, data=data, preset=preset)
    args.check()
    resolved = args.resolved()
    assert [k for k, v in resolved.arguments().items() if v is None] == ["until", "mnist"]
    assert resolved.resolved() == resolved
    own = {"squash"}
    own |= {"cover", "spread", "source_rate", "frame_rate"} if data == "digits" else set()
    for name, value in PRESETS[preset].items():
        assert name in own or getattr(resolved, name) == value, name


def test_what_is_given_stays():
    given: dict[str, Any] = GIVEN | {"steps": 7, "evaluate_every": 3}
    for preset in get_args(Preset):
        resolved = Attention(preset=preset, **given).resolved()
        assert {name: getattr(resolved, name) for name in given} == given


ON_DIGITS = {"cover": 0.5, "spread": 0.5, "source_rate": 1.0, "frame_rate": 3.0}
ON_400 = {"cover": 0.25, "spread": 0.4, "scale": 0.0025}


@pytest.mark.parametrize(
    ("given", "made"),
    [
        *(({"canvas": n}, {"cover": 0.8, "spread": 0.0, "scale": 0.01}) for n in (None, 60, 100)),
        # Sizes follow from data, canvas and glimpses.
        ({}, {"canvas": 100, "size": 32, "reduce": 1, "width": 32}),
        ({"glimpses": 8}, {"canvas": 100, "size": 12, "reduce": 1, "width": 64}),
        ({"glimpses": 8, "width": 5}, {"width": 5}),
        ({"canvas": 60}, {"canvas": 60, "size": 32, "reduce": 1}),
        ({"canvas": 400}, {"canvas": 400, "size": 32, "reduce": 2}),
        ({"data": "digits"}, {"canvas": 60, "size": 12, "reduce": 2, "width": 32}),
        ({"data": "digits", "canvas": 100}, {"canvas": 100, "size": 12, "reduce": 3}),
        # Small digits are found within few steps.
        ({"data": "digits"}, ON_DIGITS),
        ({"data": "digits", "cover": 0.7}, ON_DIGITS | {"cover": 0.7}),
        ({"data": "digits", "preset": "paper"}, {"cover": 0.8, "spread": 0.0, "source_rate": 1.0}),
        # On the largest canvas frames are small and digits spread, but for what is given.
        ({"canvas": 400}, ON_400),
        *(({"canvas": 400, **one}, ON_400 | one) for one in ({"cover": 0.5}, {"spread": 0.0})),
        ({"canvas": 400, "scale": 0.0}, ON_400 | {"scale": 0.0}),
        # A finder is not squashed, and a convnet has squashed corners, in the paper points.
        *(({"model": model}, {"squash": "none"}) for model in LOOKING),
        *(({"model": model, "source": "convnet"}, {"squash": "corners"}) for model in LOOKING),
        ({"preset": "paper"}, {"squash": "points"}),
        ({"preset": "paper", "source": "finder"}, {"squash": "none"}),
    ],
    ids=str,
)
def test_what_is_left_open_follows_from_what_is_given(given, made):
    resolved = Attention(**given).resolved()
    assert {name: getattr(resolved, name) for name in made} == made


def test_every_argument_decides_and_changes_the_key_or_is_bookkeeping():
    args = Attention(device="cpu").resolved()
    others = {"model": "reinforce", "preset": "paper", "glimpses": 2, "data": "digits"}
    others |= {"split": "validation", "width": 7, "frame": "affine"}
    for name, value in (GIVEN | others).items():
        assert dataclasses.replace(args, **{name: value}).key() != args.key(), name
    bookkeeping = {"mnist": Path("elsewhere"), "keep_frames": False}
    for name, value in bookkeeping.items():
        assert dataclasses.replace(args, **{name: value}).key() == args.key(), name
    shared = Experiment.__annotations__.keys() - {"batch", "lr"}
    own = {field.name for field in dataclasses.fields(Attention)} - shared
    assert own == GIVEN.keys() | others.keys() | bookkeeping.keys()


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
