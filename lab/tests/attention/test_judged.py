"""How a trial of the attention experiment is judged, and what is kept of it for figures."""

import math
from typing import Any

import pytest
import torch
from lab.tests.attention.trials import build, of_every_looking_model, of_every_model
from torch import Tensor, nn

from sparsewire_lab.attention import trial as attention_trial
from sparsewire_lab.attention.models import GlimpseClassifier

pytestmark = pytest.mark.usefixtures("glyphs")


class Says(nn.Module):
    """Answers with scores that it is given, one set after the other, over and over."""

    def __init__(self, *scores: Tensor) -> None:
        super().__init__()
        self.scores, self.calls = scores, 0

    def forward(self, x: Tensor, mode: str | None = None) -> Tensor:
        scores = self.scores[self.calls % len(self.scores)]
        self.calls += 1
        return scores.expand(len(x), -1)


@pytest.mark.parametrize("at_once", [1, 5, 10_000])
@pytest.mark.parametrize("answer", range(0, 10, 3))
def test_the_error_of_a_constant_answer_is_the_share_of_other_classes(answer, at_once, monkeypatch):
    monkeypatch.setattr(attention_trial, "_JUDGED_PIXELS", at_once * 60 * 60)
    trial = build("convnet")
    trial.model = Says(nn.functional.one_hot(torch.tensor(answer), 10).float())
    others = (trial.labels != answer).float().mean().item()
    assert trial.evaluate() == {"error": pytest.approx(others)}
    assert trial.model.calls == math.ceil(len(trial.labels) / at_once)


def test_probabilities_are_averaged_not_votes_and_not_scores():
    trial = build("convnet")
    image = trial.images[:2]
    # Two votes against one, but the one is surer.
    votes = [[0.48, 0.52], [0.48, 0.52], [0.9, 0.1]]
    # A single draw that rules a class out must not rule it out for all.
    scores = [[0.6, 0.4]] * 6 + [[1e-9, 1 - 1e-9]]
    for odds in (votes, scores):
        trial.model = Says(*(torch.tensor(p).log() for p in odds))
        assert trial.classify(image, "sampled", len(odds)).tolist() == [0, 0]
        assert trial.model.calls == len(odds)


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("glimpse", ["expected", "sampled", "sampled16"]),
        ("reinforce", ["sampled", "sampled16"]),
        ("transformer", []),
        ("convnet", []),
    ],
)
def test_a_run_ends_with_the_errors_of_other_ways_to_look(model, names, monkeypatch):
    trial = build(model)
    trial.model.eval()
    asked = []
    classify = trial.classify

    def noted(images: Tensor, mode: Any, draws: int) -> Tensor:
        asked.append((mode, draws))
        return classify(images, mode, draws)

    monkeypatch.setattr(trial, "classify", noted)
    before = torch.get_rng_state()
    with torch.no_grad():
        ended = trial.conclude()
    assert list(ended) == names
    assert torch.equal(torch.get_rng_state(), before)
    passes = {"expected": ("expected", 1), "sampled": ("sampled", 1), "sampled16": ("sampled", 16)}
    assert asked == [passes[name] for name in names]
    torch.manual_seed(99)
    with torch.no_grad():
        assert trial.conclude() == ended


def test_sampled_errors_are_those_of_the_run_s_seed(monkeypatch):
    drawn = []
    for seed in (3, 3, 4):
        trial = build("reinforce", seed=seed)
        monkeypatch.setattr(trial, "error", lambda mode, draws=1: torch.rand(()).item())
        torch.manual_seed(len(drawn))
        drawn.append(trial.conclude())
    assert drawn[0] == drawn[1] != drawn[2]
    torch.manual_seed(3)
    assert drawn[0] == {"sampled": torch.rand(()).item(), "sampled16": torch.rand(()).item()}


@pytest.mark.parametrize(
    ("raw", "scale", "window"),
    [(-50.0, 0.01, 3), (0.0, 0.01, 9), (0.0, 0.1, 21)],
)
def test_the_window_of_expectations_covers_three_standard_deviations(raw, scale, window):
    """√0.1, √(0.1 + 2.13 · 60 · scale) and so on; at most 21."""
    trial = build(scale=scale, floor=0.1, settle=0.0)
    model = trial.model
    assert isinstance(model, GlimpseClassifier)
    with torch.no_grad():
        model.look.layer.source.raw_variances.fill_(raw)
        variance = math.log1p(math.exp(raw + 2)) * 60 * scale + 0.1
        trial.model.eval()
        trial.conclude()
    assert window == min(21, 2 * math.ceil(3 * math.sqrt(variance)) + 1)
    assert model.look.layer.window == window


@of_every_model
def test_judging_changes_nothing_and_draws_nothing(model):
    trial = build(model)
    trial.model.eval()
    state = {name: t.clone() for name, t in trial.model.state_dict().items()}
    before = torch.get_rng_state()
    with torch.no_grad():
        first = trial.evaluate(), trial.snapshot(0), trial.constants()
        second = trial.evaluate(), trial.snapshot(5), trial.constants()
    assert torch.equal(torch.get_rng_state(), before)
    assert first[0] == second[0]
    for one, other in zip(first[1:], second[1:], strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert all(torch.equal(t, state[name]) for name, t in trial.model.state_dict().items())


# What is kept for figures.


@of_every_looking_model
def test_some_canvases_and_some_mistakes_are_kept(model):
    trial = build(model)
    trial.model.eval()
    with torch.no_grad():
        frame, kept = trial.snapshot(0), trial.constants()
        right = trial.classify(trial.images) == trial.labels
    wrong = [i for i in range(8, len(right)) if not right[i]][:8]
    shown = [*range(8), *wrong]  # the mistakes are others than those that are watched
    assert len(wrong) == 8
    assert torch.equal(kept["images"], trial.images[shown, 0])
    assert torch.equal(kept["labels"], trial.labels[shown])
    assert (kept["predicted"][8:] != kept["labels"][8:]).all()
    assert torch.equal(kept["predicted"] == kept["labels"], right[shown])
    ends = kept["points"][:8, :, [0, 0, -1, -1], [0, -1, 0, -1]]
    assert torch.equal(frame["corners"], ends)
    assert ("sampled" in kept) == (model == "glimpse")


def test_without_mistakes_the_watched_canvases_are_kept(monkeypatch):
    """And nothing where there is nothing to see."""
    trial = build()
    trial.model.eval()
    monkeypatch.setattr(trial, "classify", lambda images: trial.labels)
    with torch.no_grad():
        kept = trial.constants()
    assert torch.equal(kept["predicted"], trial.labels[:8])
    assert kept["images"].shape == (8, 60, 60)
    assert build("convnet").snapshot(0) == build(keep_frames=False).snapshot(0) == {}
