"""The attention experiment: its settings, its data, what learns in a step, how it is judged."""

import dataclasses
import math
import re
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from glyphs import BRIGHTNESS, load_glyphs, use_glyphs
from tests.helpers import seeded
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn.functional import cross_entropy

from sparsewire.data import CANVASES, Digits
from sparsewire.experiments import attention, rates
from sparsewire.experiments.attention import (
    PRESETS,
    Attention,
    AttentionTrial,
    Model,
    make_model,
)
from sparsewire.experiments.rates import start_well
from sparsewire.layers.convnet import ConvNet
from sparsewire.models import GlimpseClassifier, ReinforceGlimpse, SpatialTransformer
from sparsewire.models.attention import Head

CPU = torch.device("cpu")
MODELS: tuple[Model, ...] = get_args(Model)

pytestmark = pytest.mark.usefixtures("glyphs")


@pytest.fixture
def glyphs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Easy shapes instead of digits; the splits that are asked for."""
    return use_glyphs(monkeypatch)


of_every_model = pytest.mark.parametrize("model", MODELS)


def small(model: Model = "glimpse", **options: Any) -> Attention:
    """A setting that takes no time: 60 × 60 pixels, glimpses of 6 × 6 points, few samples."""
    given: dict[str, Any] = {"data": "digits", "device": "cpu", "batch": 8, "steps": 10}
    if model != "convnet":
        given["size"] = 6
    if model == "glimpse":
        given |= {"local_samples": 4, "global_samples": 2}
    return Attention(model=model, **{**given, **options})


def build(model: Model = "glimpse", seed: int = 0, **options: Any) -> AttentionTrial:
    args = small(model, **options)
    args.check()
    torch.manual_seed(seed)
    return args.resolved().build(seed, CPU)


def everything(x: Tensor) -> Tensor:
    return x


def step(trial: AttentionTrial, batch: int = 8) -> Tensor:
    trial.optimizer.zero_grad()
    loss = trial.loss(trial.model, batch, everything)
    loss.backward()
    trial.optimizer.step()
    trial.after_step()
    return loss.detach()


# Settings.


def test_the_paper_s_numbers():
    args = Attention(preset="paper").resolved()
    assert (args.lr, args.batch, args.head) == (1e-4, 128, "mlp")
    assert (args.local_samples, args.global_samples, args.region) == (32, 16, 20)
    assert (args.glimpses, args.size, args.canvas, args.frame) == (1, 32, 100, "box")
    assert args.settle == 0.0
    assert args.steps == math.ceil(70 * 60_000 / 128)
    assert Attention(preset="paper", glimpses=8).resolved().size == 12


def test_the_paper_leaves_variances_and_learning_rate_alone():
    trial = build(preset="paper", region=5)
    assert isinstance(trial.model, GlimpseClassifier)
    layer = trial.model.look.layer
    assert trial.schedule is None
    assert (layer.variance_factor, layer.hardness) == (None, None)
    assert {group["lr"] for group in trial.optimizer.param_groups} == {1e-4}


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("data", ["mnist", "digits"])
@of_every_model
def test_nothing_is_left_open(model, data, preset):
    args = Attention(model=model, data=data, preset=preset)
    args.check()
    resolved = args.resolved()
    assert [k for k, v in resolved.arguments().items() if v is None] == ["until", "mnist"]
    assert resolved.resolved() == resolved
    for name, value in PRESETS[preset].items():
        assert getattr(resolved, name) == value


def test_what_is_given_stays():
    given: dict[str, Any] = {
        "steps": 7, "lr": 0.5, "size": 9, "canvas": 400, "reduce": 2, "head": "mlp",
        "dropout": 0.25, "squash": "points", "region": 3, "scale": 0.5, "floor": 0.0,
        "settle": 0.0, "straight": 0.5, "hold": 0.25, "cosine": False, "source_rate": 0.5,
        "frame_rate": 0.25, "start": "torch", "evaluate_every": 3,
    }  # fmt: skip
    for preset in get_args(attention.Preset):
        resolved = Attention(preset=preset, **given).resolved()
        assert {name: getattr(resolved, name) for name in given} == given


@pytest.mark.parametrize(
    ("given", "canvas", "size", "reduce"),
    [
        ({}, 100, 32, 1),
        ({"glimpses": 8}, 100, 12, 1),
        ({"canvas": 60}, 60, 32, 1),
        ({"canvas": 400}, 400, 32, 4),
        ({"data": "digits"}, 60, 12, 2),
        ({"data": "digits", "canvas": 100}, 100, 12, 3),
    ],
)
def test_sizes_follow_from_data_and_canvas(given, canvas, size, reduce):
    resolved = Attention(**given).resolved()
    assert (resolved.canvas, resolved.size, resolved.reduce) == (canvas, size, reduce)


@pytest.mark.parametrize("name", ["mnist", "keep_frames"])
def test_bookkeeping_leaves_the_key(name):
    other = {"mnist": Path("elsewhere"), "keep_frames": False}
    changed = dataclasses.replace(Attention().resolved(), **{name: other[name]})
    assert changed.key() == Attention().resolved().key()


# Two values of each; one of them is another than that of the preset.
DECIDING: dict[str, tuple[Any, Any]] = {
    "model": ("glimpse", "reinforce"), "preset": ("ours", "paper"), "glimpses": (1, 2),
    "size": (32, 7), "data": ("mnist", "digits"), "canvas": (100, 60), "reduce": (1, 2),
    "split": ("test", "validation"), "head": ("mlp", "conv"), "dropout": (0.125, 0.25),
    "frame": ("box", "affine"), "squash": ("corners", "points"), "cover": (0.8, 0.5),
    "local_samples": (32, 1), "global_samples": (16, 1), "region": (3, 4), "scale": (0.75, 0.5),
    "floor": (0.75, 0.5), "settle": (0.125, 0.25), "straight": (0.125, 0.25),
    "hold": (0.0625, 0.03125), "cosine": (False, True), "source_rate": (0.125, 0.25),
    "frame_rate": (0.125, 0.25), "start": ("he", "torch"), "deviation": (0.1, 0.5),
    "batch": (128, 64),
}  # fmt: skip


@pytest.mark.parametrize("name", DECIDING)
def test_what_decides_changes_the_key(name):
    args = Attention(device="cpu").resolved()
    other = next(value for value in DECIDING[name] if value != getattr(args, name))
    assert dataclasses.replace(args, **{name: other}).key() != args.key()


def test_every_argument_decides_or_is_bookkeeping():
    own = set(Attention.__annotations__) - {"name", "bookkeeping"}
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


# What is refused.

ONLY = {
    "glimpses": (2, ("glimpse", "reinforce")),
    "deviation": (0.2, ("reinforce",)),
    "cover": (0.5, ("glimpse", "transformer")),
    "size": (5, ("glimpse", "transformer", "reinforce")),
    "head": ("mlp", ("glimpse", "transformer", "reinforce")),
    "dropout": (0.1, ("glimpse", "transformer", "reinforce")),
    "source_rate": (0.5, ("glimpse", "transformer", "reinforce")),
    "frame_rate": (0.5, ("glimpse", "transformer", "reinforce")),
    "frame": ("affine", ("glimpse",)),
    "squash": ("points", ("glimpse",)),
    "scale": (0.5, ("glimpse",)),
    "floor": (0.5, ("glimpse",)),
    "settle": (0.5, ("glimpse",)),
    "straight": (0.5, ("glimpse",)),
    "hold": (0.25, ("glimpse",)),
    "start": ("torch", ("glimpse", "transformer", "reinforce")),
    "region": (4, ("glimpse",)),
    "local_samples": (1, ("glimpse",)),
    "global_samples": (1, ("glimpse",)),
}


@of_every_model
@pytest.mark.parametrize("name", ONLY)
def test_arguments_without_effect_are_refused(name, model):
    value, models = ONLY[name]
    args = Attention(model=model, **{name: value})
    if model in models:
        args.check()
    else:
        with pytest.raises(ValueError, match=f"^{name} has a meaning with .* only; got {model}"):
            args.check()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"glimpses": 0}, "glimpses must be at least 1; got 0"),
    ({"size": 0}, "size must be at least 1; got 0"),
    ({"canvas": 0}, "canvas must be at least 1; got 0"),
    ({"canvas": 50}, "canvas must be one of 60, 100, 400; got 50"),
    ({"reduce": 0}, "reduce must be at least 1; got 0"),
    ({"region": 0}, "region must be at least 1; got 0"),
    ({"dropout": 1.5}, "dropout must be between 0 and 1; got 1.5"),
    ({"settle": -0.5}, "settle must be between 0 and 1; got -0.5"),
    ({"straight": 1.5}, "straight must be between 0 and 1; got 1.5"),
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


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"cover": 1.0}, "cover"),
        ({"model": "reinforce", "deviation": 0.0}, "deviation"),
        ({"local_samples": -1}, "local_samples"),
        ({"global_samples": -1}, "global_samples"),
        ({"head": "conv", "size": 3}, "size"),
        ({"canvas": 60, "reduce": 100}, "reduce"),
        ({"source_rate": -1.0}, "source_rate"),
        ({"frame_rate": -1.0}, "frame_rate"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(options, name):
    with pytest.raises(ValueError, match=f"^{name} must be"):
        checked(Attention(**options))


def checked(args: Attention) -> Attention:
    """As the command does it."""
    args.check()
    return args.resolved()


def test_validation_digits_may_say_when_to_stop():
    Attention(split="validation", until=0.1).check()


# Data.


@pytest.mark.parametrize(
    ("split", "splits"),
    [("test", ["all-train", "test"]), ("validation", ["train", "validation"])],
)
def test_what_is_judged_was_never_trained_on(split, splits, glyphs):
    """Nor are its pieces among others: they are as dark as no digit of training."""
    trial = build(split=split)
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

    def load(split: Any, folder: Path | None) -> Digits:
        asked.append((split, folder))
        return load_glyphs(split)

    monkeypatch.setattr(attention, "load_mnist", load)
    args = Attention(mnist=Path("some"), canvas=60, size=6, device="cpu", reduce=2)
    args.resolved().build(0, CPU)
    assert asked == [("all-train", Path("some")), ("test", Path("some"))]


def test_the_canvases_that_errors_are_measured_on_stay():
    """Whatever the seed, the model and the state of torch's generator."""
    first = build(seed=0)
    others = [build(seed=1), build("convnet"), build(seed=2, glimpses=2, size=4)]
    assert first.images.dtype == torch.uint8
    assert first.images.shape == (len(first.labels), 1, 60, 60)
    for trial in others:
        assert torch.equal(trial.images, first.images)
        assert torch.equal(trial.labels, first.labels)


def images_of(trial: AttentionTrial, batch: int = 8) -> Tensor:
    """The canvases of the next step."""
    seen = []

    def model(x: Tensor) -> Tensor:
        seen.append(x)
        return torch.zeros(len(x), 10)

    trial.loss(model, batch, everything)
    return seen[0]


def test_every_step_has_canvases_of_its_own():
    trial = build("convnet")
    torch.manual_seed(3)
    first, second = images_of(trial), images_of(trial)
    assert first.shape == (8, 1, 60, 60)
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(images_of(trial), first)


def test_the_loss_is_the_cross_entropy_of_the_share():
    trial = build("convnet")
    scores = torch.randn(8, 10, generator=seeded(0))
    torch.manual_seed(3)
    got = trial.loss(lambda x: scores[: len(x)].bfloat16(), 8, lambda t: t[2:5])
    torch.manual_seed(3)
    which = torch.randint(len(trial.digits.labels), (8,))
    want = cross_entropy(scores[:3].bfloat16().float(), trial.digits.labels[which][2:5])
    torch.testing.assert_close(got, want)


# What learns.


def waiting(model: nn.Module) -> set[str]:
    """Parameters without a gradient until a layer after them, which starts at zero, has left it.

    Those of a spatial transformer's source, and of the second of two heads, but for the last layer.
    """
    names = [name for name, _ in model.named_parameters()]
    second = [name for name in names if name.startswith("head.conv.")]
    source = [name for name in names if name.startswith("source.")]
    return {*second[:-2], *(source[:-2] if isinstance(model, SpatialTransformer) else [])}


LOOKING: list[tuple[Any, Any]] = [("convnet", None)]
LOOKING += [(m, head) for m in MODELS if m != "convnet" for head in get_args(Head)]


@pytest.mark.parametrize("start", ["he", "torch"])
@pytest.mark.parametrize(("model", "head"), LOOKING)
def test_every_parameter_gets_a_gradient(model, head, start):
    options: dict[str, Any] = {} if head is None else {"head": head, "start": start}
    trial = build(model, **options)
    loss = trial.loss(trial.model, 64, everything)
    assert loss.shape == ()
    assert loss.isfinite()
    loss.backward()
    for name, parameter in trial.model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any() == (name not in waiting(trial.model)), name


@pytest.mark.parametrize("head", get_args(Head))
def test_what_waits_learns_from_the_second_step_on(head):
    trial = build("transformer", head=head, cosine=False)
    step(trial)
    trial.optimizer.zero_grad()
    trial.loss(trial.model, 16, everything).backward()
    for name, parameter in trial.model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


def test_reinforce_gets_the_gradient_of_its_score():
    """∇ = mean of (mean reward − reward) · ∇ log p for the source, and ∇ loss for the head."""
    trial = build("reinforce", glimpses=2, dropout=0.0, size=20, head="mlp")
    model = trial.model
    assert isinstance(model, ReinforceGlimpse)
    torch.manual_seed(5)
    loss = trial.loss(model, 32, everything)
    parameters = dict(model.named_parameters())
    got = dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))

    torch.manual_seed(5)
    scene, labels = attention.draw_batch(trial.digits, 32, trial.canvas)
    means = model.source(scene.images).sigmoid().view(32, 2, 2)
    centres = (means + 0.1 * torch.randn(32, 2, 2)).detach()
    torch.manual_seed(5)
    attention.draw_batch(trial.digits, 32, trial.canvas)
    scores, _ = model(scene.images)
    plain = cross_entropy(scores, labels)
    torch.testing.assert_close(loss, plain)
    reward = (scores.argmax(1) == labels).float()
    assert 0 < reward.sum() < 32
    score = Normal(means, 0.1).log_prob(centres).sum((1, 2))
    surrogate = ((reward.mean() - reward) * score).mean()
    source = {n: p for n, p in parameters.items() if n.startswith("source.")}
    head = {n: p for n, p in parameters.items() if n.startswith("head.")}
    assert {*source, *head} == {*parameters}
    for objective, part in ((surrogate, source), (plain, head)):
        want = torch.autograd.grad(objective, list(part.values()))
        for name, gradient in zip(part, want, strict=True):
            torch.testing.assert_close(got[name], gradient, rtol=1e-4, atol=1e-7)


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
    monkeypatch.setattr(attention, "load_digits", two_amounts_of_ink)
    # Without He's start there is less to begin with: more steps, and smaller ones.
    lr, steps, batch = (1e-3, 120, 8) if model == "convnet" else (3e-3, 80, 16)
    options: dict[str, Any] = {"lr": lr, "cosine": False, "steps": steps}
    if model != "convnet":
        options["start"] = "he"
        options |= {"size": 32 if model == "reinforce" else 12, "head": "conv", "dropout": 0.0}
        options |= {"source_rate": 0.3, "frame_rate": 0.03}
    if model == "glimpse":
        options |= {"squash": "corners", "region": 8, "scale": 0.01, "settle": 0.7}
    trial = build(model, **options)
    losses = [float(step(trial, batch)) for _ in range(steps)]
    trial.model.eval()
    first, last = losses[0], sum(losses[-10:]) / 10
    assert first > 0.8 * math.log(10)
    assert last < 0.6 * math.log(2)
    with torch.no_grad():
        assert trial.evaluate()["error"] <= 0.1


@of_every_model
@pytest.mark.parametrize("preset", ["ours", "paper"])
def test_every_parameter_is_in_one_group(model, preset):
    trial = build(model, preset=preset, lr=0.5, cosine=False)
    groups = trial.optimizer.param_groups
    grouped = [p for group in groups for p in group["params"]]
    assert len({id(p) for p in grouped}) == len(grouped)
    assert {id(p) for p in grouped} == {id(p) for p in trial.model.parameters()}


def rates_of(trial: AttentionTrial) -> dict[int, float]:
    """The learning rate of each parameter, by its identity."""
    return {id(p): g["lr"] for g in trial.optimizer.param_groups for p in g["params"]}


def net_of(model: nn.Module) -> ConvNet:
    (net,) = (part for part in model.modules() if isinstance(part, ConvNet))
    return net


@pytest.mark.parametrize("model", ["glimpse", "transformer", "reinforce"])
@pytest.mark.parametrize("reduce", [1, 2])
@pytest.mark.parametrize("start", ["he", "torch"])
def test_the_source_and_its_last_layer_have_rates_of_their_own(model, reduce, start):
    """With a good start its first linear layer has less, as it has more inputs than others."""
    rates: dict[str, Any] = {"lr": 0.5, "source_rate": 0.5, "frame_rate": 0.25, "cosine": False}
    trial = build(model, **rates, reduce=reduce, start=start)
    rate, net = rates_of(trial), net_of(trial.model)
    last = {id(p) for p in net.head[-1].parameters()}
    inside = {id(p) for p in net.parameters()}
    wide: Any = net.head[0]
    assert wide.in_features > 512
    for name, parameter in trial.model.named_parameters():
        key = id(parameter)
        want = 0.125 if key in last else 0.25 if key in inside else 0.5
        if parameter is wide.weight and start == "he":
            want *= 512 / wide.in_features
        assert rate[key] == pytest.approx(want), name


@pytest.mark.parametrize("name", ["source_rate", "frame_rate"])
def test_a_rate_of_zero_keeps_that_part_as_it_is(name):
    options: dict[str, Any] = {name: 0.0, "cosine": False}
    trial = build(**options)
    part: Any = net_of(trial.model).head[0 if name == "source_rate" else -1]
    assert rates_of(trial)[id(part.weight)] == 0.0


def factors_of(trial: AttentionTrial, steps: int) -> Tensor:
    """By which every learning rate is multiplied, in each step and for each parameter by name."""
    schedule, optimizer = trial.schedule, trial.optimizer
    assert schedule is not None
    table = []
    for _ in range(steps):
        now = {
            id(p): g["lr"] / g["initial_lr"] for g in optimizer.param_groups for p in g["params"]
        }
        table.append([now[id(p)] for p in trial.model.parameters()])
        optimizer.step()
        schedule.step()
    assert all(group["lr"] == pytest.approx(0.0, abs=1e-6) for group in optimizer.param_groups)
    return torch.tensor(table, dtype=torch.float64)


def cosine(steps: int) -> Tensor:
    return 0.5 * (1 + (math.pi * torch.arange(steps, dtype=torch.float64) / steps).cos())


@pytest.mark.parametrize("model", ["convnet", "transformer"])
def test_learning_rates_rise_and_fall_along_a_cosine(model):
    options: dict[str, Any] = {} if model == "convnet" else {"head": "mlp"}
    trial = build(model, steps=100, cosine=True, **options)
    factors, fall = factors_of(trial, 100), cosine(100).unsqueeze(1)
    assert (factors[0] > 0).all()
    assert (factors[0] < 0.9).all()
    rising = factors[:21] / fall[:21]
    assert (rising.diff(dim=0) >= -1e-6).all()
    torch.testing.assert_close(factors[20:], fall[20:].expand_as(factors[20:]))
    assert build(model, cosine=False).schedule is None


def test_the_second_of_two_heads_joins_in_later():
    trial = build("transformer", steps=100, cosine=True, head="both")
    factors, fall = factors_of(trial, 100), cosine(100)
    for (name, _), its in zip(trial.model.named_parameters(), factors.unbind(1), strict=True):
        if name.startswith("head.conv."):
            assert not its[:10].any(), name
            torch.testing.assert_close(its[50:], fall[50:])
        else:
            torch.testing.assert_close(its[20:], fall[20:])


# Models.


def test_models_are_what_was_asked_for():
    kinds = (GlimpseClassifier, nn.Sequential, SpatialTransformer, ReinforceGlimpse)
    for model, kind in zip(MODELS, kinds, strict=True):
        assert isinstance(build(model).model, kind)
    whole = build("convnet", reduce=1).model
    assert isinstance(whole, ConvNet)
    assert whole.head[-1].out_features == 10


@pytest.mark.parametrize(("frame", "numbers"), [("box", 4), ("affine", 6), ("quadrangle", 8)])
def test_a_glimpse_model_is_built_as_told(frame, numbers):
    options: dict[str, Any] = {"region": 7, "scale": 0.25, "floor": 0.5, "squash": "points"}
    trial = build(frame=frame, glimpses=3, **options, head="mlp", dropout=0.25)
    model = trial.model
    assert isinstance(model, GlimpseClassifier)
    layer = model.look.layer
    assert (layer.local_samples, layer.global_samples) == (4, 2)
    assert (layer.region, layer.variance_scale, layer.variance_floor) == (7, 0.25, 0.5)
    assert layer.edge == "sigmoid"
    last: Any = net_of(model).head[-1]
    assert last.out_features == 3 * numbers
    parts = list(model.head.modules())
    assert [m.p for m in parts if isinstance(m, nn.Dropout)] == [0.25]
    assert [m.in_features for m in parts if isinstance(m, nn.Linear)] == [3 * 36, 128]


def test_the_source_sees_the_canvas_reduced():
    model = build(reduce=4).model
    assert isinstance(model, GlimpseClassifier)
    x = torch.rand(2, 1, 60, 60)
    source = model.look.layer.source.source
    means = x.unflatten(-1, (15, 4)).unflatten(-3, (15, 4)).mean((-1, -3))
    torch.testing.assert_close(source(x), source[1](means))


def outputs_of(start: Any) -> Tensor:
    """Of a source that sees canvases, before training."""
    torch.manual_seed(0)
    net = net_of(make_model(small(start=start).resolved()))
    images = build("convnet").images.float() / BRIGHTNESS["test"]
    with torch.no_grad():
        return net(nn.functional.avg_pool2d(images, 2))


def test_a_good_start_lets_frames_vary_with_the_image():
    """And near zero all the same: its last layer is made small."""
    he, plain = outputs_of("he"), outputs_of("torch")
    assert he.std(0).mean() / rates._SMALL_END > 0.1
    assert he.std(0).mean() > 10 * plain.std(0).mean()
    assert he.abs().max() < 0.1


def test_a_good_start_keeps_the_size_of_signals():
    """Weights of variance 2 / inputs, but for the last layer; no biases."""
    net = ConvNet(1, 400, (12, 12))
    start_well(net)
    layers: list[Any] = [m for m in net.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    for layer in layers:
        assert not layer.bias.any()
        weight = layer.weight
        # Of n numbers the variance has a standard error of √(2 / n).
        error = 4 * math.sqrt(2 / weight.numel())
        scale = rates._SMALL_END if layer is layers[-1] else 1
        variance = weight.var().item() / scale**2
        assert variance * weight[0].numel() / 2 == pytest.approx(1, abs=error)


# How it is judged.


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
    monkeypatch.setattr(attention, "_JUDGED_PIXELS", at_once * 60 * 60)
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


@pytest.mark.parametrize("model", ["glimpse", "transformer", "reinforce"])
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
    trial = build()
    trial.model.eval()
    monkeypatch.setattr(trial, "classify", lambda images: trial.labels)
    with torch.no_grad():
        kept = trial.constants()
    assert torch.equal(kept["predicted"], trial.labels[:8])
    assert kept["images"].shape == (8, 60, 60)


def test_nothing_is_kept_where_there_is_nothing_to_see():
    assert build("convnet").snapshot(0) == {}
    assert build(keep_frames=False).snapshot(0) == {}
