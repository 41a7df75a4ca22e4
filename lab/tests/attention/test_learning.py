"""What learns in a step of the attention experiment: losses, gradients, prices and rates."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lab.tests.attention.trials import (
    build,
    everything,
    looks_of,
    of_every_model,
    step,
)
from tests.helpers import seeded
from torch import Tensor
from torch.distributions import Normal
from torch.nn.functional import cross_entropy

from sparsewire_lab.attention import trial as attention_trial
from sparsewire_lab.attention.models import ReinforceGlimpse
from sparsewire_lab.attention.resolution import ResolutionPenalty
from sparsewire_lab.attention.trial import AttentionTrial
from sparsewire_lab.data import Digits, experiment

pytestmark = pytest.mark.usefixtures("glyphs")


def test_the_loss_is_the_cross_entropy_of_the_share():
    trial = build("convnet")
    scores = torch.randn(8, 10, generator=seeded(0))
    torch.manual_seed(3)
    got = trial.loss(lambda x: scores[: len(x)].bfloat16(), 8, lambda t: t[2:5])
    torch.manual_seed(3)
    which = torch.randint(len(trial.digits.labels), (8,))
    want = cross_entropy(scores[:3].bfloat16().float(), trial.digits.labels[which][2:5])
    torch.testing.assert_close(got, want)


# Gradients.

EVERY: list[dict[str, Any]] = [{"model": "convnet"}]
EVERY += [
    {"model": model, "source": source, "head": head}
    for model in ("glimpse", "transformer", "reinforce")
    for source in ("finder", "convnet")
    for head in ("mlp", "conv")
]


def gradients(trial: AttentionTrial, batch: int = 64) -> dict[str, Tensor]:
    """Of the next loss, by the names of all parameters."""
    parameters = dict(trial.model.named_parameters())
    loss = trial.loss(trial.model, batch, everything)
    assert loss.shape == ()
    assert loss.isfinite()
    found = torch.autograd.grad(loss, list(parameters.values()))
    return dict(zip(parameters, found, strict=True))


def waiting(trial: AttentionTrial) -> set[str]:
    """Parameters without a gradient until a layer after them, which starts at zero, has left it."""
    args = trial.args
    inside = [n for n, _ in trial.model.named_parameters() if "source." in n]
    if args.model != "convnet" and args.source == "finder":
        return {n for n in inside if ".features." in n or ".norm." in n}
    if args.model == "transformer":
        return {n for n in inside if ".head.4." not in n}
    return set()


@pytest.mark.parametrize("options", EVERY, ids=lambda o: "-".join(o.values()))
def test_every_parameter_gets_a_gradient(options):
    """What waits at first has one as well after a few steps."""
    trial = build(**options, cosine=False)
    first = gradients(trial)
    assert {name for name, gradient in first.items() if not gradient.any()} == waiting(trial)
    for _ in range(3):
        step(trial, 16)
    for name, gradient in gradients(trial).items():
        assert gradient.isfinite().all(), name
        assert gradient.any(), name


@pytest.mark.parametrize(("source", "squash"), [("finder", False), ("convnet", True)])
def test_reinforce_gets_the_gradient_of_its_score(source, squash):
    """∇ = mean of (mean reward − reward) · ∇ log p for the source, and ∇ loss for the head."""
    options: dict[str, Any] = {"dropout": 0.0, "size": 20, "head": "mlp", "deviation": 0.1}
    trial = build("reinforce", glimpses=2, source=source, **options)
    step(trial)  # after which all of the source has a gradient
    model = trial.model
    assert isinstance(model, ReinforceGlimpse)
    torch.manual_seed(5)
    loss = trial.loss(model, 32, everything)
    parameters = dict(model.named_parameters())
    got = dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))

    torch.manual_seed(5)
    scene, labels = attention_trial.sample_canvases(trial.digits, 32, trial.canvas)
    told = model.source(scene.images).view(32, 2, 2)
    means = told.sigmoid() if squash else told + 0.5
    centres = (means + 0.1 * torch.randn(32, 2, 2)).detach()
    torch.manual_seed(5)
    attention_trial.sample_canvases(trial.digits, 32, trial.canvas)
    scores, _ = model(scene.images)
    plain = cross_entropy(scores, labels)
    torch.testing.assert_close(loss, plain)
    reward = (scores.argmax(1) == labels).float()
    assert 0 < reward.sum() < 32
    score = Normal(means, 0.1).log_prob(centres).sum((1, 2))
    surrogate = ((reward.mean() - reward) * score).mean()
    inside = {n: p for n, p in parameters.items() if n.startswith("source.")}
    head = {n: p for n, p in parameters.items() if n.startswith("head.")}
    assert {*inside, *head} == {*parameters}
    for objective, part in ((surrogate, inside), (plain, head)):
        want = torch.autograd.grad(objective, list(part.values()))
        for name, gradient in zip(part, want, strict=True):
            torch.testing.assert_close(got[name], gradient, rtol=1e-4, atol=1e-7)


# The price of what lies between points.


@pytest.mark.parametrize("model", ["glimpse", "transformer"])
@pytest.mark.parametrize("source", ["finder", "convnet"])
def test_the_price_of_a_glimpse_has_a_gradient_but_is_no_part_of_the_loss(model, source):
    """The gradient is that of the cross-entropy and the price; reported is the cross-entropy."""
    free, paying = (build(model, source=source, zoom=zoom) for zoom in (0.0, 3.0))
    assert free.penalty is None
    assert looks_of(free.model).on_points is None
    losses, found = [], []
    for trial in (free, paying):
        torch.manual_seed(5)
        loss = trial.loss(trial.model, 32, everything)
        losses.append(loss)
        found.append(torch.autograd.grad(loss, list(trial.model.parameters())))
    torch.testing.assert_close(losses[0], losses[1])

    penalty = ResolutionPenalty(3.0, side=60)
    looks_of(paying.model).on_points = penalty.on_points
    torch.manual_seed(5)
    scene, labels = attention_trial.sample_canvases(paying.digits, 32, paying.canvas)
    price = penalty.loss(cross_entropy(paying.model(scene.images), labels, reduction="none"))
    parameters = dict(paying.model.named_parameters())
    more = torch.autograd.grad(price, list(parameters.values()), allow_unused=True)
    assert any(gradient is not None and gradient.any() for gradient in more)
    for name, one, other, extra in zip(parameters, *found, more, strict=True):
        want = one if extra is None else one + extra
        torch.testing.assert_close(other, want, rtol=1e-3, atol=1e-6, msg=name)


# Training.


def two_amounts_of_ink(split: Any, folder: Path | None = None) -> Digits:
    del split, folder
    images = torch.zeros(20, 28, 28, dtype=torch.uint8)
    images[0::2, 12:16, 12:16] = 255
    images[1::2, 4:24, 4:24] = 255
    return Digits(images, torch.arange(20) % 2)


@pytest.mark.usefixtures("unchecked")
@of_every_model
def test_training_finds_what_can_be_seen(model, monkeypatch):
    """A small spot or a large square: better than ln 2, which is what guesses of two classes cost.

    ln 10 is what a model begins with.
    """
    monkeypatch.setattr(experiment, "load_digits", two_amounts_of_ink)
    lr, steps, batch = (1e-3, 120, 8) if model == "convnet" else (3e-3, 60, 16)
    options: dict[str, Any] = {"lr": lr, "cosine": False, "steps": steps}
    if model != "convnet":
        options |= {"size": 32 if model == "reinforce" else 12, "dropout": 0.0}
    trial = build(model, **options)
    losses = [float(step(trial, batch)) for _ in range(steps)]
    trial.model.eval()
    first, last = losses[0], sum(losses[-10:]) / 10
    assert first > 0.8 * math.log(10)
    assert last < 0.6 * math.log(2)
    with torch.no_grad():
        assert trial.evaluate()["error"] <= 0.1
