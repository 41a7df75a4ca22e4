"""The canvases of the attention experiment: those it trains on, and those it is judged by."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lab.tests.attention.glyphs import BRIGHTNESS, load_glyphs
from lab.tests.attention.trials import CPU, build, everything, of_every_model
from torch import Tensor

from sparsewire_lab.attention import trial as attention_trial
from sparsewire_lab.attention.experiment import Attention
from sparsewire_lab.attention.trial import AttentionTrial
from sparsewire_lab.data import CANVASES, Digits, Scene, experiment

pytestmark = pytest.mark.usefixtures("glyphs")


def images_of(trial: AttentionTrial, batch: int = 8) -> Tensor:
    """The canvases of the next step."""
    seen = []

    def model(x: Tensor) -> Tensor:
        seen.append(x)
        return torch.zeros(len(x), 10)

    trial.loss(model, batch, everything)
    return seen[0]


@pytest.mark.parametrize(
    ("split", "splits"),
    [("test", ["all-train", "test"]), ("validation", ["train", "validation"])],
)
def test_what_is_judged_was_never_trained_on(split, splits, glyphs):
    """Nor are its pieces among others: they are as dark as no digit of training."""
    trial = build("convnet", split=split)
    assert glyphs == splits
    mine, held_out = (load_glyphs(name) for name in splits)
    assert torch.equal(trial.digits.images, mine.images)
    assert torch.equal(trial.labels, held_out.labels)
    most = BRIGHTNESS[splits[1]] * (1 + CANVASES[60].distractors)
    assert 0 < trial.images.max() <= most < BRIGHTNESS[splits[0]]
    seen = images_of(trial)
    assert seen[seen > 0].min() * 255 >= BRIGHTNESS[splits[0]] - 0.5


def test_mnist_is_read_from_its_folder(monkeypatch):
    asked = []

    def load(split: Any, folder: Path | None, **_: Any) -> Digits:
        asked.append((split, folder))
        return load_glyphs(split)

    monkeypatch.setattr(experiment, "load_mnist", load)
    args = Attention(mnist=Path("some"), canvas=60, size=6, device="cpu", reduce=2)
    args.resolved().build(0, CPU)
    assert asked == [("all-train", Path("some")), ("test", Path("some"))]


def test_the_canvases_that_errors_are_measured_on_stay():
    """Whatever the seed, the model, the state of torch's generator, and how digits spread."""
    first = build(seed=0)
    others = [build(seed=1), build("convnet"), build(seed=2, glimpses=2, size=4)]
    others += [build(spread=0.5), build("convnet", spread=1.0), build(spread=0.5, cover=0.01)]
    assert first.images.dtype == torch.uint8
    assert first.images.shape == (len(first.labels), 1, 60, 60)
    for trial in others:
        assert torch.equal(trial.images, first.images)
        assert torch.equal(trial.labels, first.labels)


def test_every_step_has_canvases_of_its_own():
    trial = build("convnet")
    torch.manual_seed(3)
    first, second = images_of(trial), images_of(trial)
    assert first.shape == (8, 1, 60, 60)
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(images_of(trial), first)


@pytest.fixture
def scenes(monkeypatch: pytest.MonkeyPatch) -> list[Scene]:
    """What is drawn to train on, as it comes."""
    drawn: list[Scene] = []
    draw = attention_trial.sample_canvases

    def noted(*args: Any, **options: Any) -> tuple[Scene, Tensor]:
        scene, labels = draw(*args, **options)
        drawn.append(scene)
        return scene, labels

    monkeypatch.setattr(attention_trial, "sample_canvases", noted)
    return drawn


def away(scene: Scene) -> float:
    """How far digits lie from the middle at most, in shares of what there is."""
    room = (60 - 28) / 2
    return ((scene.corners - room).abs().max() / room).item()


def test_digits_spread_from_what_frames_cover_over_the_canvas(scenes):
    """After 8 of 10 steps they lie anywhere; before, in a share that grows evenly from 0.2."""
    trial = build("transformer", cover=0.2, spread=0.8, steps=10, zoom=0.0)
    for number in range(10):
        images_of(trial, batch=64)
        share = 0.2 + 0.8 * min(1.0, number / 8)
        # Of 128 numbers the largest is near the end; places are rounded to pixels.
        assert share - 0.15 < away(scenes[-1]) <= share + 0.5 / 16
        trial.after_step()
    assert trial.clocks["placement"].step == 10


@pytest.mark.parametrize("model", ["convnet", "reinforce"])
def test_digits_spread_also_for_models_without_frames(model, scenes):
    """From what frames would cover, so that all models see the same."""
    trial = build(model, canvas=400, reduce=20, steps=5, spread=None)
    assert trial.share == 0.25
    trial.loss(trial.model, 2, everything)
    room = (400 - 28) / 2
    assert (scenes[0].corners - room).abs().max() <= 0.25 * room + 0.5
    trial.after_step()
    trial.after_step()
    assert trial.share == 1.0


@of_every_model
def test_without_spreading_digits_lie_anywhere_from_the_first_step_on(model, scenes):
    trial = build(model)
    assert trial.share is None
    trial.loss(trial.model, 64, everything)
    assert away(scenes[0]) > 0.9
