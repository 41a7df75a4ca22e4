"""Models that look before they classify: what they read, where, and what their gradients are."""

import math
from typing import Any

import pytest
import torch
from lab.tests.attention.trials import Given
from tests.helpers import seeded
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn import functional as F

from sparsewire import Glimpse
from sparsewire.nn.frames import COUNTS, FRAMES
from sparsewire_lab.attention.models import (
    GlimpseClassifier,
    Head,
    ReinforceGlimpse,
    SpatialTransformer,
    make_head,
)

# Heads.


SHAPES = [(1, 1, 4, 4), (2, 3, 9, 5), (8, 1, 12, 12)]


def layers_of(head: nn.Module, kind: type[nn.Module]) -> list[Any]:
    return [layer for layer in head.modules() if isinstance(layer, kind)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_two_linear_layers_read_everything(shape, dropout):
    """In training, hidden numbers are dropped."""
    head = make_head(shape, 7, 20, "mlp", dropout)
    dropped = [nn.Dropout] if dropout else []
    kinds = [nn.Flatten, nn.Linear, nn.ReLU, *dropped, nn.Linear]
    assert [type(layer) for layer in head] == kinds
    assert [m.p for m in layers_of(head, nn.Dropout)] == ([dropout] if dropout else [])
    sizes = [(m.in_features, m.out_features) for m in layers_of(head, nn.Linear)]
    assert sizes == [(math.prod(shape), 20), (20, 7)]
    assert head(torch.rand(3, *shape)).shape == (3, 7)


@pytest.mark.parametrize(("shape", "width"), list(zip(SHAPES, (32, 1, 5), strict=True)))
def test_convolutions_come_before_them_with_glimpses_as_channels(shape, width):
    """Step by step, by PyTorch's functions and in float64, with norms that saw something."""
    head = make_head(shape, 7, 20, "conv", 0.5, width).double().eval()
    norms = layers_of(head, nn.BatchNorm2d) + layers_of(head, nn.BatchNorm1d)
    for norm in norms:
        for numbers in (norm.weight, norm.bias, norm.running_mean):
            nn.init.normal_(numbers)
        nn.init.uniform_(norm.running_var, 0.5, 2.0)

    def normal(y: Tensor, number: int) -> Tensor:
        norm = norms[number]
        told = norm.running_mean, norm.running_var, norm.weight, norm.bias
        return F.batch_norm(y, *told, eps=norm.eps)

    x = torch.randn(3, *shape, dtype=torch.float64)
    y = x.flatten(1, 2)
    convolutions = layers_of(head, nn.Conv2d)
    assert [m.out_channels for m in convolutions] == [width, width, 2 * width, 2 * width]
    assert len(norms) == 5
    for number, layer in enumerate(convolutions):
        y = normal(F.conv2d(y, layer.weight, padding=1), number).relu()
        y = F.max_pool2d(y, 2) if number % 2 else y
    first, last = layers_of(head, nn.Linear)
    assert first.in_features == 2 * width * (shape[2] // 4) * (shape[3] // 4)
    torch.testing.assert_close(head(x), last(normal(first(y.flatten(1)), 4).relu()))
    assert isinstance(head[-2], nn.Dropout)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (((1, 1, 3, 8), 10, 8, "conv", 0.0), "size must be at least 4 for a conv head; got 3 × 8"),
        (((1, 1, 8, 3), 10, 8, "conv", 0.0), "size must be at least 4 for a conv head; got 8 × 3"),
        (((1, 1, 8, 8), 10, 8, "tail", 0.0), "head must be one of 'mlp', 'conv'; got 'tail'"),
        (((1, 1, 8, 8), 10, 8, "mlp", 1.5), "dropout must be between 0 and 1; got 1.5"),
        (((1, 1, 8, 8), 10, 8, "conv", 0.5, 0), "width must be at least 1; got 0"),
    ],
)
def test_heads_that_cannot_be_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        make_head(*given)


MADE: dict[str, Any] = {
    "glimpse": lambda **o: GlimpseClassifier(Glimpse((1, 32, 32), 8), **o),
    "transformer": lambda **o: SpatialTransformer((1, 32, 32), 8, **o),
    "reinforce": lambda **o: ReinforceGlimpse((1, 32, 32), 8, **o),
}


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("head", ["mlp", "conv"])
def test_every_model_has_the_head_that_it_is_given(kind, head: Head):
    model = MADE[kind](head=head, dropout=0.25, classes=4, hidden=30)
    assert bool(layers_of(model.head, nn.Conv2d)) == (head == "conv")
    assert [m.p for m in layers_of(model.head, nn.Dropout)] == [0.25]
    assert [m.out_features for m in layers_of(model.head, nn.Linear)] == [30, 4]
    out: Any = model(torch.rand(2, 1, 32, 32))
    assert (out[0] if kind == "reinforce" else out).shape == (2, 4)


# The paper's model.


def test_a_glimpse_classifier_classifies_what_its_glimpses_read():
    look = Glimpse((1, 16, 16), 4, 2)
    model = GlimpseClassifier(look, classes=5, hidden=7).eval()
    x = torch.rand(3, 1, 16, 16)
    first, last = layers_of(model.head, nn.Linear)
    want = last(torch.relu(first(look(x).flatten(1))))
    assert torch.equal(model(x), want)
    torch.manual_seed(1)
    sampled = model(x, mode="sampled")
    assert not torch.equal(sampled, want)
    assert sampled.shape == (3, 5)


# The spatial transformer.


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("bound", ["corners", "none"])
def test_a_spatial_transformer_looks_where_a_glimpse_does(frame, bound):
    """The same numbers of a source are the same frame; it starts over most of the image."""
    source = Given(0.3 * torch.randn(3, COUNTS[frame]))
    words: dict[str, Any] = {"frame": frame, "bound": bound, "cover": 0.4, "source": source}
    x = torch.rand(3, 1, 15, 19)
    points = SpatialTransformer((1, 15, 19), 5, **words).points(x)
    looked = Glimpse((1, 15, 19), 5, **words).points(x)
    inside = torch.minimum(points.clamp(min=0), torch.tensor([14.0, 18.0]))
    torch.testing.assert_close(inside, looked)
    assert not torch.allclose(points[0], points[1])
    x = torch.rand(2, 3, 21, 21)
    model = SpatialTransformer((3, 21, 21), size=17, cover=0.8, frame=frame, bound=bound)
    torch.testing.assert_close(model.read(x), x[:, :, 2:19, 2:19], atol=1e-5, rtol=1e-5)


def test_on_points_is_called_with_where_a_spatial_transformer_looks():
    source = Given(torch.zeros(4))
    model = SpatialTransformer((1, 21, 31), 4, frame="box", bound="none", cover=0.5, source=source)
    assert model.on_points is None
    seen: list[Tensor] = []
    model.on_points = seen.append
    x = torch.rand(3, 1, 21, 31)
    model(x)
    (points,) = seen
    assert points.shape == (3, 1, 4, 4, 2)
    torch.testing.assert_close(points * torch.tensor([20.0, 30.0]), model.points(x))
    (gradient,) = torch.autograd.grad(points.mean(), source.numbers)
    torch.testing.assert_close(gradient, torch.full((4,), 0.25))  # half of each of two axes


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"frame": "circle"}, "frame must be one of 'box', 'affine', 'quadrangle'; got 'circle'"),
        ({"bound": "points"}, "bound must be one of 'corners', 'none'; got 'points'"),
        ({"cover": 1.0}, "cover must be between"),
        ({"size": 0}, "size must be at least 1"),
    ],
)
def test_what_a_spatial_transformer_cannot_be_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        SpatialTransformer(**{"image": (1, 16, 16), "size": 4, **given})


def test_a_spatial_transformer_starts_a_last_linear_layer_at_zero_and_no_other():
    first, last = nn.Linear(64, 16), nn.Linear(16, 6)
    SpatialTransformer((1, 8, 8), 4, source=nn.Sequential(nn.Flatten(), first, nn.ReLU(), last))
    assert not last.weight.any()
    assert not last.bias.any()
    assert first.weight.all()
    other = nn.Linear(64, 6)
    SpatialTransformer((1, 8, 8), 4, source=nn.Sequential(nn.Flatten(), other, nn.Tanh()))
    assert other.weight.all()


# Glimpses that are placed by REINFORCE.


def crop(image: Tensor, centre: Tensor, size: int) -> tuple[Tensor, tuple[int, int]]:
    """The window of pixels around a place in shares of the image, moved inside; and its corner."""
    corner = []
    for share, n in zip(centre.tolist(), image.shape[-2:], strict=True):
        start = round(share * (n - 1) - (size - 1) / 2)
        corner.append(min(max(start, 0), n - size))
    row, col = corner
    return image[:, row : row + size, col : col + size], (row, col)


@pytest.mark.parametrize(
    ("glimpses", "channels", "size", "bounded"),
    [(1, 1, 1, True), (3, 2, 4, True), (1, 1, 5, False), (3, 2, 13, False), (3, 2, 1, False)],
)
def test_glimpses_are_slices_of_the_image(glimpses, channels, size, bounded):
    """Around bounded numbers, or around places counted from the middle, some of them outside."""
    x = torch.rand(6, channels, 13, 17)
    deviation = 3.0 if bounded else 0.4
    numbers = deviation * torch.randn(6, 2 * glimpses, generator=seeded(1))
    image = (channels, 13, 17)
    model = ReinforceGlimpse(image, size, glimpses, bounded=bounded, source=Given(numbers)).eval()
    read, points = model.read(x), model.points(x)
    assert read.shape == (6, glimpses, channels, size, size)
    assert points.shape == (6, glimpses, size, size, 2)
    centres = (numbers.sigmoid() if bounded else numbers + 0.5).view(6, glimpses, 2)
    corners = set()
    for b in range(6):
        for g in range(glimpses):
            want, (row, col) = crop(x[b], centres[b, g], size)
            corners.add((row, col))
            assert torch.equal(read[b, g], want)
            steps = torch.arange(float(size))
            grid = torch.meshgrid(row + steps, col + steps, indexing="ij")
            assert torch.equal(points[b, g], torch.stack(grid, dim=-1))
    assert size == 13 or len(corners) > 2
    scores, _ = model(x)
    assert torch.equal(scores, model.head(read))


def exact_expectation(numbers: Tensor, image: Tensor, deviation: float) -> Tensor:
    """Of the one pixel that is read, over the places that a draw may round to."""
    shares = []
    for mean, n in zip(numbers.sigmoid(), image.shape, strict=True):
        edges = (torch.arange(n - 1, dtype=torch.float64) + 0.5) / (n - 1)
        below = Normal(mean, deviation).cdf(edges)
        shares.append(torch.cat([mean.new_zeros(1), below, mean.new_ones(1)]).diff())
    return shares[0] @ image @ shares[1]


def test_the_mean_of_the_estimates_is_the_gradient_of_the_expectation():
    """One pixel of 3 × 4 is read: 200,000 draws, within four standard errors."""
    count, image = 200_000, torch.randn(3, 4, dtype=torch.float64, generator=seeded(7))
    numbers = torch.tensor([0.4, -0.3], dtype=torch.float64, requires_grad=True)
    expected = exact_expectation(numbers, image, 0.3)
    (want,) = torch.autograd.grad(expected, numbers)
    each = numbers.detach().float().repeat(count, 1)
    model = ReinforceGlimpse((1, 3, 4), 1, deviation=0.3, source=Given(each))
    model.head = nn.Sequential(nn.Flatten())
    scores, log_probability = model(image.float().expand(count, 1, 3, 4))
    read = scores[:, 0].detach()
    assert abs(read.mean() - expected.item()) < 4 * read.std() / math.sqrt(count)
    loss = (read * log_probability).sum()
    (estimates,) = torch.autograd.grad(loss, model.source.numbers)  # pyright: ignore
    error = estimates.std(0) / math.sqrt(count)
    assert ((estimates.mean(0) - want).abs() < 4 * error).all()
    assert (want.abs() > 8 * error).all()


def test_evaluation_looks_at_the_means_and_draws_nothing():
    model = ReinforceGlimpse((1, 32, 32), 4, 2, deviation=0.2, dropout=0.5).eval()
    x = torch.rand(3, 1, 32, 32)
    before = torch.get_rng_state()
    scores, log_probability = model(x)
    assert torch.equal(model(x)[0], scores)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(scores, model.head(model.read(x)))
    most = -4 * math.log(0.2 * math.sqrt(2 * math.pi))  # of four numbers, each at its mean
    torch.testing.assert_close(log_probability, torch.full((3,), most))
    assert not torch.equal(model(x, mode="sampled")[0], scores)
    model.train()
    assert torch.equal(model(x, mode="rounded")[1], log_probability)
    assert not torch.equal(model(x)[1], log_probability)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"size": 9}, "size must be at most 8, the image's side; got 9"),
        ({"size": 0}, "size must be at least 1"),
        ({"glimpses": 0}, "glimpses must be at least 1"),
        ({"deviation": 0.0}, "deviation must be between"),
        ({"deviation": 1.5}, "deviation must be between"),
    ],
)
def test_what_reinforce_cannot_place_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        ReinforceGlimpse(**{"image": (1, 8, 9), "size": 4, **given})
