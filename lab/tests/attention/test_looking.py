"""Where models look and what they read there: against pixels at the points that are told."""

from typing import Any

import numpy as np
import pytest
import torch
from lab.tests.attention.trials import Given
from scipy import ndimage, stats
from torch import Tensor, nn

from sparsewire import Glimpse
from sparsewire.nn.frames import corners_of
from sparsewire_lab.attention.convnet import ConvNet
from sparsewire_lab.attention.looking import frame_corners, observe
from sparsewire_lab.attention.models import GlimpseClassifier, ReinforceGlimpse, SpatialTransformer

IMAGE = (1, 24, 20)


class Numbers(nn.Module):
    """A source whose numbers depend on the image: far apart for different ones."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.net = nn.Linear(24 * 20, count)

    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.net(x.flatten(1))


def make(kind: str) -> nn.Module:
    torch.manual_seed(1)
    if kind == "glimpse":
        return GlimpseClassifier(Glimpse(IMAGE, 5, 2, source=Numbers(8))).eval()
    if kind == "transformer":
        return SpatialTransformer(IMAGE, 5, source=nn.Sequential(Numbers(6), nn.Tanh())).eval()
    return ReinforceGlimpse(IMAGE, 5, 2, source=Numbers(4)).eval()


@pytest.fixture
def images() -> Tensor:
    return torch.randint(256, (6, *IMAGE), dtype=torch.uint8)


LOOKING = {"glimpse": 2, "transformer": 1, "reinforce": 2}

of_every_kind = pytest.mark.parametrize("kind", LOOKING)


@of_every_kind
@torch.no_grad()
def test_corners_are_watched(kind, images):
    """A model that reads everything has none."""
    model: Any = make(kind)
    x = images.float() / 255
    points = model.look.points(x) if kind == "glimpse" else model.points(x)
    watched = frame_corners(model, images)
    assert list(watched) == ["corners"]
    assert watched["corners"].shape == (6, LOOKING[kind], 4, 2)
    assert torch.equal(watched["corners"], corners_of(points))
    assert not torch.allclose(watched["corners"][0], watched["corners"][1])
    plain = ConvNet(1, 10, (3, 2)).eval()
    assert frame_corners(plain, images) == {}
    assert list(observe(plain, images, seed=0)) == ["images"]


@of_every_kind
@torch.no_grad()
def test_what_is_read_is_what_lies_at_the_points(kind, images):
    """The nearest pixel; for a transformer what lies between the four around it."""
    seen = observe(make(kind), images, seed=0)
    points, read = seen["points"], seen["glimpses"]
    assert torch.equal(seen["images"], images[:, 0])
    assert points.shape == (6, LOOKING[kind], 5, 5, 2)
    assert read.shape == (6, LOOKING[kind], 5, 5)
    if kind == "transformer":
        outside = (points < 0) | (points > torch.tensor([23.0, 19.0]))
        assert outside.any()  # beyond the edges lies what lies at them
    for image, places, found in zip(images[:, 0].float() / 255, points, read, strict=True):
        order = 1 if kind == "transformer" else 0
        want = ndimage.map_coordinates(image, places.movedim(-1, 0), order=order, mode="nearest")
        np.testing.assert_allclose(found, want, atol=1e-4)


@torch.no_grad()
def test_samples_come_from_a_generator_of_their_own(images):
    """Only a model that samples tells of them."""
    for kind in LOOKING:
        assert ("sampled" in observe(make(kind), images, seed=0)) == (kind == "glimpse")
    model = make("glimpse")
    before = torch.get_rng_state()
    first = observe(model, images, seed=3)["sampled"]
    assert torch.equal(torch.get_rng_state(), before)
    assert first.dtype == torch.int16
    assert first.shape == (6, 2, 25, 2)
    assert (first >= 0).all()
    assert (first < torch.tensor(IMAGE[1:])).all()
    torch.manual_seed(77)
    assert torch.equal(observe(model, images, seed=3)["sampled"], first)
    assert not torch.equal(observe(model, images, seed=4)["sampled"], first)


@torch.no_grad()
def test_narrow_densities_are_sampled_where_they_are(images):
    """Two channels as well: the places of the first, which are those of both."""
    for channels in (1, 2):
        source = Given(torch.tensor([0.3, -0.2, 0.1, 0.4, -0.5, 0.2, 0.3, 0.1]))
        look = Glimpse((channels, 24, 20), 5, 2, source=source, variance_floor=1e-4)
        look.layer.source.raw_variances.fill_(-30.0)
        seen = observe(GlimpseClassifier(look).eval(), images.expand(6, channels, 24, 20), 0)
        want = seen["points"].round().flatten(2, 3)
        assert torch.equal(seen["sampled"].float(), want)


@torch.no_grad()
def test_samples_are_drawn_by_their_shares():
    """One point between four pixels and no others: 4,000 draws, χ² against the normal density."""
    source = Given(torch.tensor([0.1, -0.1, 0.1, -0.1]))
    look = Glimpse((1, 9, 9), 1, source=source, local_samples=0, global_samples=0)
    model = GlimpseClassifier(look).eval()
    images = torch.zeros(4000, 1, 9, 9, dtype=torch.uint8)
    seen = observe(model, images, seed=0)
    wiring = look.wiring(images[:1].float())
    mean, variance = wiring.means[0, 0].double(), wiring.variances[0, 0].double()
    low = mean.floor()
    places = [(low + torch.tensor(p)).long() for p in ([0, 0], [0, 1], [1, 0], [1, 1])]
    density = torch.stack([(-(p - mean).square() / (2 * variance)).sum().exp() for p in places])
    counts = [(seen["sampled"][:, 0, 0] == place).all(-1).sum().item() for place in places]
    assert sum(counts) == 4000
    shares = density / density.sum()
    assert shares.max() < 0.6  # or there would be nothing to test
    assert stats.chisquare(counts, (4000 * shares).numpy()).pvalue > 0.001
