"""Parameters in groups, against how far their tuples then move."""

from typing import Any

import pytest
import torch
from torch import nn

import sparsewire as sw


def layers() -> nn.ModuleDict:
    return nn.ModuleDict(
        {
            "paced": sw.SparseLinear(12, 5, fan_in=2),
            "paper": sw.SparseLayer((40,), (8,), 6, schedule=None),
            "clamp": sw.SparseLayer((40,), (80,), 6, schedule=None, edge="clamp"),
            "convolution": sw.HyperLayer(sw.Convolution((5,), 3, schedule=None), (1, 20), (2, 20)),
            "dense": nn.Linear(3, 4),
        }
    )


def test_every_parameter_is_in_one_group_and_places_do_not_decay():
    model: Any = layers()
    model["again"] = model["paper"]
    groups = sw.parameter_groups(model, 0.1, weight_decay=0.5)
    torch.optim.AdamW(groups)  # refuses parameters that come twice
    found = {id(p): group for group in groups for p in group["params"]}
    assert found.keys() == {id(p) for p in model.parameters()}
    for name, parameter in model.named_parameters():
        place = "raw_" in name
        assert found[id(parameter)]["weight_decay"] == (0 if place else 0.5), name
        if not place or name.startswith("paced") or "variances" in name:
            assert found[id(parameter)]["lr"] == 0.1, name


@pytest.mark.parametrize("name", ["paper", "clamp", "convolution"])
def test_a_step_moves_means_by_as_many_places_on_every_axis(name):
    model: Any = layers()[name]
    with torch.no_grad():
        model.source.raw_means.fill_(0.0 if model.edge == "sigmoid" else 0.5)
    before = model.wiring().means.detach()
    optimizer = torch.optim.Adam(sw.parameter_groups(model, 1e-3))
    model.wiring().means.sum().backward()
    optimizer.step()
    moved = (model.wiring().means - before).abs().max().item()
    assert 0.02 < moved < 0.031
