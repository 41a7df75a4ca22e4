"""Rewiring: several layers at once."""

import copy
import re

import pytest
import torch
from tests.rewire.wires import flat_layer, offer, put, setup
from torch import Tensor, nn

import sparsewire as sw
from sparsewire import Rewire


def model() -> nn.Sequential:
    """Two layers to rewire, and three that cannot be."""
    return nn.Sequential(
        sw.SparseLinear(12, 8, fan_in=2, seed=0),
        nn.ReLU(),
        nn.ModuleDict({"inside": sw.SparseLayer((8,), (4,), tuples=6, seed=1)})["inside"],
        nn.Linear(4, 4),
        sw.SparseLayer((4,), (4,), tuples=4, local_samples=0, global_samples=0, seed=2),
        sw.SparseLayer((None,), (3,), tuples=4, seed=3),
    )


def trained(net: nn.Module, rewire: Rewire, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        x = torch.randn(16, 12)
        optimizer.zero_grad()
        (net(x) - x[:, :3]).square().mean().backward()
        optimizer.step()
        rewire.step()


@pytest.mark.filterwarnings("ignore:.* tuples compete for")
def test_all_layers_of_a_model_that_can_be_are_rewired_and_restored():
    nets = [model() for _ in range(2)]
    optimizers = [torch.optim.Adam(net.parameters(), lr=0.01) for net in nets]
    rewires = [
        Rewire(*pair, every=5, negligible=0.8) for pair in zip(nets, optimizers, strict=True)
    ]
    assert [part.layer for part in rewires[0].layers] == [nets[0][0], nets[0][2]]
    trained(nets[0], rewires[0], optimizers[0], 12)
    for mine in (nets, optimizers, rewires):
        mine[1].load_state_dict(copy.deepcopy(mine[0].state_dict()))
    ends: list[list[Tensor]] = []
    saved = torch.get_rng_state()
    for net, optimizer, rewire in zip(nets, optimizers, rewires, strict=True):
        torch.set_rng_state(saved)
        trained(net, rewire, optimizer, 13)
        assert rewire.steps == 25
        assert rewire.moves == sum(int(part.moves) for part in rewire.layers)
        states = [t for part in rewire.state_dict()["layers"] for t in part.values()]
        ends.append([*net.state_dict().values(), *states])
    assert int(rewires[0].moves) > 0
    assert all(map(torch.equal, *ends))
    rewires[0].remove()
    assert all(part.layer.on_sample is None for part in rewires[0].layers)


def test_layers_move_with_options_of_all_and_places_of_each():
    layers = [flat_layer(9, 2), flat_layer(5, 2)]
    optimizer = torch.optim.Adam([p for layer in layers for p in layer.parameters()])
    rewire = Rewire(layers, optimizer, every=1)
    for layer, part, place in zip(layers, rewire.layers, ([7, 8], [1, 4]), strict=True):
        put(layer, [[3, 3], [3, 3]], [1.0, 0.5])
        part.places[0] = place[0] * layer.space()[1] + place[1]
        part.gradients[0] = 1.0
    rewire.step()
    held = [layer.nearest_places(layer.wiring().means)[1].tolist() for layer in layers]
    assert held == [[7, 8], [1, 4]]
    assert rewire.moves == 2


def test_a_state_of_one_layer_is_read_in_its_first_form():
    one, other = setup(flat_layer(9, 2)), setup(flat_layer(9, 2))
    offer(one.rewire, [[8, 3]], [2.0])
    (state,) = one.rewire.state_dict()["layers"]
    del state["signals"]
    other.rewire.load_state_dict({"steps": 7, **state})
    assert other.rewire.steps == 7
    assert torch.equal(other.rewire.layers[0].gradients, one.rewire.layers[0].gradients)


REFUSED = [
    (lambda: [nn.Linear(4, 4)], TypeError, "free tuples, like SparseLayer; got Linear"),
    (lambda: [], ValueError, "layer must be at least one layer; got an empty sequence"),
    (lambda: [flat_layer(9, 2)] * 2, ValueError, "layer must hold each layer once"),
    (lambda: nn.Sequential(nn.ReLU()), TypeError, "must be or contain a layer with free tuples"),
    (lambda: None, TypeError, "free tuples, like SparseLayer; got NoneType"),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("make", "error", "message"), REFUSED, ids=[row[2] for row in REFUSED])
def test_what_holds_no_layer_is_refused(make, error, message):
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    with pytest.raises(error, match=re.escape(message)):
        Rewire(make(), optimizer)


def test_a_refusal_attaches_no_layer_and_a_bad_state_changes_none():
    layers = [flat_layer(9, 2), flat_layer(9, 3)]
    with pytest.raises(ValueError, match="optimizer must hold the parameters of the layer"):
        Rewire(layers, torch.optim.SGD(layers[0].parameters(), lr=0.1))
    assert [layer.on_sample for layer in layers] == [None, None]
    optimizer = torch.optim.SGD([p for layer in layers for p in layer.parameters()], lr=0.1)
    rewire = Rewire(layers, optimizer)
    state = rewire.state_dict()
    state["layers"][0]["ages"] += 5
    with pytest.raises(ValueError, match="state must be of 2 layers; got 1"):
        rewire.load_state_dict({**state, "layers": state["layers"][:1]})
    with pytest.raises(ValueError, match="state must be of a layer with 3 tuples; got 2"):
        rewire.load_state_dict({**state, "layers": [state["layers"][0]] * 2})
    assert rewire.layers[0].ages.tolist() == [0, 0]
