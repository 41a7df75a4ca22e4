"""The frames of a model's glimpses and what it reads in them, for figures."""

import torch
from torch import Tensor, nn

from sparsewire.nn.frames import corners_of
from sparsewire_lab.attention.models import GlimpseClassifier, ReinforceGlimpse, SpatialTransformer
from sparsewire_lab.train.trial import generator


def frame_corners(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """Return the corners of a model's frames on images in uint8; empty if it has none."""
    points = _points(model, images.float() / 255)
    return {} if points is None else {"corners": corners_of(points)}


def read_in_frames(model: nn.Module, images: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the corners of a model's frames on images in uint8, and what it reads in them."""
    x = images.float() / 255
    points = _points(model, x)
    return None if points is None else (corners_of(points), _read(model, x)[:, :, 0].float())


def observe(model: nn.Module, images: Tensor, seed: int) -> dict[str, Tensor]:
    """Return images in uint8, the points that a model reads there, and what it reads.

    For a model that samples, one integer tuple is sampled for each point as well, by its share.
    """
    x = images.float() / 255
    seen = {"images": images[:, 0]}
    points = _points(model, x)
    if points is None:
        return seen
    seen |= {"points": points, "glimpses": _read(model, x)[:, :, 0].float()}
    if isinstance(model, GlimpseClassifier):
        source = generator(seed, x.device)
        sampled = model.look.layer.sample(x, mode="sampled", generator=source)
        shares = sampled.values.abs().flatten(0, -2)
        chosen = torch.multinomial(shares, 1, generator=source).view(
            *sampled.values.shape[:-1], 1, 1
        )
        places = sampled.indices.gather(-2, chosen.expand(*chosen.shape[:-1], 2)).squeeze(-2)
        # One channel of each glimpse: the others look at the same places.
        count = points.shape[2] * points.shape[3]
        places = places.unflatten(1, (points.shape[1], -1, count))[:, :, 0]
        seen["sampled"] = places.to(torch.int16)
    return seen


def _points(model: nn.Module, x: Tensor) -> Tensor | None:
    if isinstance(model, GlimpseClassifier):
        return model.look.points(x)
    if isinstance(model, SpatialTransformer | ReinforceGlimpse):
        return model.points(x)
    return None


def _read(model: nn.Module, x: Tensor) -> Tensor:
    """Glimpses, (b, g, c, k, k), of a deterministic pass."""
    if isinstance(model, GlimpseClassifier):
        return model.look(x, mode="rounded")
    if isinstance(model, ReinforceGlimpse):
        return model.read(x)
    assert isinstance(model, SpatialTransformer)
    return model.read(x).unsqueeze(1)
