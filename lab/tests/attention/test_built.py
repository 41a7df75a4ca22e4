"""The models of the attention experiment: built as their arguments say."""

from typing import Any

import pytest
import torch
from lab.tests.attention.trials import build, looks_of, net_of, of_every_looking_model
from torch import nn

from sparsewire_lab.attention.convnet import ConvNet
from sparsewire_lab.attention.finder import Finder
from sparsewire_lab.attention.models import GlimpseClassifier, ReinforceGlimpse, SpatialTransformer

pytestmark = pytest.mark.usefixtures("glyphs")


@of_every_looking_model
def test_what_chooses_is_what_was_asked_for(model):
    paper: dict[str, Any] = {"preset": "paper"} | ({"region": 5} if model == "glimpse" else {})
    assert type(net_of(build(model).model)) is Finder
    assert type(net_of(build(model, source="convnet").model)) is ConvNet
    assert type(net_of(build(model, **paper).model)) is ConvNet


def test_the_paper_leaves_variances_and_learning_rate_alone():
    trial = build(preset="paper", region=5, source_rate=None, frame_rate=None)
    layer = looks_of(trial.model).layer
    assert trial.schedule is None
    assert (layer.variance_factor, layer.hardness) == (None, None)
    assert {group["lr"] for group in trial.optimizer.param_groups} == {1e-4}


@pytest.mark.parametrize(("frame", "numbers"), [("box", 4), ("affine", 6), ("quadrangle", 8)])
def test_glimpses_and_transformers_are_built_as_told(frame, numbers):
    options: dict[str, Any] = {"region": 7, "scale": 0.25, "floor": 0.5, "squash": "points"}
    options |= {"source": "convnet", "head": "mlp", "dropout": 0.25}
    model = build(frame=frame, glimpses=3, **options).model
    assert isinstance(model, GlimpseClassifier)
    layer = model.look.layer
    assert (layer.local_samples, layer.global_samples) == (4, 2)
    assert (layer.region, layer.variance_scale, layer.variance_floor) == (7, 0.25, 0.5)
    assert layer.edge == "sigmoid"
    assert net_of(model).head[-1].out_features == 3 * numbers
    parts = list(model.head.modules())
    assert [m.p for m in parts if isinstance(m, nn.Dropout)] == [0.25]
    assert [m.in_features for m in parts if isinstance(m, nn.Linear)] == [3 * 36, 128]
    model = build("transformer", source="convnet", frame=frame, size=7).model
    assert isinstance(model, SpatialTransformer)
    assert (model.frame, model.bound, model.size) == (frame, "corners", 7)
    assert net_of(model).head[-1].out_features == numbers


@pytest.mark.parametrize(("source", "bounded"), [("finder", False), ("convnet", True)])
def test_reinforce_is_built_as_told(source, bounded):
    """A finder tells places in the image, without a sigmoid. Those tried are near by default."""
    model = build("reinforce", source=source, glimpses=3, deviation=0.25).model
    assert isinstance(model, ReinforceGlimpse)
    assert (model.glimpses, model.deviation, model.bounded) == (3, 0.25, bounded)
    with torch.no_grad():
        told = net_of(model)(torch.rand(2, 1, 30, 30))
    assert told.shape == (2, 6)
    assert build("reinforce").model.deviation == 0.05


@pytest.mark.parametrize("model", ["glimpse", "transformer"])
@pytest.mark.parametrize("source", ["finder", "convnet"])
@pytest.mark.parametrize("cover", [0.25, 0.8])
@torch.no_grad()
def test_frames_cover_the_middle_before_training(model, source, cover):
    """60 pixels are 59 apart.

    A convnet is only near zero then, and the cells of a finder leave 6 of 30 pixels out.
    """
    made = build(model, source=source, cover=cover).model
    points = looks_of(made).points(torch.rand(3, 1, 60, 60))
    assert points.shape == (3, 1, 6, 6, 2)
    first, last = points[:, 0, 0, 0], points[:, 0, -1, -1]
    exact = source == "finder" or model == "transformer"
    want = torch.full((3, 2), cover * 59)
    torch.testing.assert_close(last - first, want, rtol=0, atol=1e-3 if exact else 3.0)
    aside = ((first + last) / 2 - 59 / 2).abs().max() / 59
    assert aside < 0.1 + 1e-3


def test_the_source_sees_the_canvas_reduced():
    x = torch.rand(2, 1, 60, 60)
    source = looks_of(build(reduce=4, source="convnet").model).layer.source.source
    means = x.unflatten(-1, (15, 4)).unflatten(-3, (15, 4)).mean((-1, -3))
    torch.testing.assert_close(source(x), source[1](means))
