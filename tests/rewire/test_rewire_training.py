"""Rewiring: what training finds with it, in several processes and on a GPU."""

import json
import subprocess
import sys

import pytest
import torch
from tests.gpu import never_waits, on_cuda
from tests.helpers import sampled_layer, seeded
from tests.nn.dense import matrix_of, tuples_of
from tests.rewire.wires import SOURCES, all_wasted, held_by, make, setup, train
from torch import Tensor

import sparsewire as sw
from sparsewire import HyperLayer, Rewire

# What training finds.


def found(layer: HyperLayer, target: Tensor) -> float:
    places = torch.nonzero(target.view(*layer.out_shape, *(n or 1 for n in layer.in_shape)))
    wanted = set(map(tuple, places.tolist()))
    return len(wanted & set(held_by(layer))) / len(wanted)


def permutation() -> tuple[HyperLayer, Tensor]:
    target = torch.eye(32)[torch.randperm(32, generator=seeded(3))]
    return sampled_layer((32,), (32,), tuples=32, seed=0), target


def planted() -> tuple[HyperLayer, Tensor]:
    target = torch.zeros(8, 16)
    columns = torch.randperm(16, generator=seeded(0))[:8]
    target[torch.arange(8), columns] = torch.tensor([1.5, -1.5]).repeat(4)
    return sampled_layer((4, 4), (8,), tuples=10, seed=0), target


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("begin", "without"), [(permutation, 0.8), (planted, 1.0)])
def test_a_target_is_found_with_rewiring_alone(begin, without):
    shares = []
    for every in (50, 10**9):
        torch.manual_seed(0)
        layer, target = begin()
        train(setup(layer, every), 800, target)
        shares.append(found(layer, target))
        if begin is permutation and every == 50:
            torch.testing.assert_close(matrix_of(layer, mode="rounded"), target, rtol=0, atol=0.2)
    assert shares[0] == 1.0
    assert shares[1] < without


# In several processes.

PROCESS = """
import json, os, sys
import torch
from torch import distributed
import sparsewire as sw

rank, store, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.set_num_threads(1)
distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
layer = sw.SparseLayer((8,), (8,), tuples=4, edge="clamp", seed=0, schedule=None)
optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
rewire = sw.Rewire(layer, optimizer, every=10)
with torch.no_grad():
    layer.source.raw_means.fill_(3 / 7)
    layer.source.values.copy_(torch.tensor([4.0, 1.0, 1.0, 1.0]))
mine = [[9, 4.0], [50, 2.0]] if rank == 0 else [[60, 3.0], [9, 1.0]]
rewire.layers[0].places[:2] = torch.tensor([int(place) for place, _ in mine])
rewire.layers[0].gradients[:2] = torch.tensor([size for _, size in mine])
rewire.rewire()
held = (layer.wiring().means.round().long() @ torch.tensor([8, 1])).tolist()
layer.source.reset_parameters(torch.Generator().manual_seed(1))
torch.manual_seed(rank)
draws = []
for _ in range(40):
    optimizer.zero_grad()
    x = torch.randn(16, 8)
    draws.append(x[0, 0].item())
    (layer(x) - x).square().mean().backward()
    for parameter in layer.parameters():
        distributed.all_reduce(parameter.grad)
    optimizer.step()
    rewire.step()
state = [p.detach().flatten().tolist() for p in layer.parameters()]
result = {"held": held, "draws": draws, "state": state, "moves": int(rewire.moves)}
with open(out, "w") as file:
    json.dump(result, file)
distributed.barrier()
# The threads of gloo sometimes abort a process that ends while its peer still does.
os._exit(0)
"""


def test_processes_pool_their_places_and_make_the_same_moves(tmp_path):
    outs = [tmp_path / f"{rank}.json" for rank in range(2)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(rank), str(tmp_path / "store"), str(out)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, out in enumerate(outs)
    ]
    try:
        for process in processes:
            errors = process.communicate(timeout=120)[1]
            assert process.returncode == 0, errors
    finally:
        for process in processes:
            process.kill()
    first, second = (json.loads(out.read_text()) for out in outs)
    assert first["held"] == [3 * 8 + 3, 9, 60, 50]
    assert first["draws"] != second["draws"]
    assert first["moves"] > 3
    for name in ("held", "state", "moves"):
        assert first[name] == second[name]


# On a GPU.


@on_cuda
@pytest.mark.usefixtures("unchecked")
def test_cuda_captured_training_finds_the_identity():
    """With the step captured and the rewiring after it."""
    layer = sampled_layer((64,), (64,), tuples=64, values=1.0, seed=0).cuda()
    source = tuples_of(layer)
    groups = [
        {"params": [source.raw_means], "lr": 0.01},
        {"params": [source.raw_variances, source.values]},
    ]
    optimizer = torch.optim.Adam(groups, lr=0.02, fused=True)
    rewire = Rewire(layer, optimizer, every=50)

    def step() -> Tensor:
        x = torch.randn(64, 64, device="cuda")
        optimizer.zero_grad()
        loss = (layer(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    captured = sw.capture(step, optimizer=optimizer)
    for _ in range(2000):
        captured()
        rewire.step()
    assert captured.captured
    assert rewire.moves > 0
    assert found(layer, torch.eye(64)) == 1.0


@on_cuda
@pytest.mark.parametrize("kind", ["rank 2", "rank 3", "lower", "banded", "convolution"])
def test_cuda_rewiring_never_waits(kind):
    one = setup(make(kind, tuples=12).cuda(), every=1)

    def step() -> None:
        x = torch.randn(16, *(size or 1 for size in one.layer.in_shape), device="cuda")
        one.optimizer.zero_grad()
        one.layer(x).square().mean().backward()
        one.optimizer.step()

    step()
    one.rewire.step()  # copies constants to the device
    step()
    with never_waits():
        one.rewire.step()
    assert one.rewire.moves > 0


@on_cuda
@pytest.mark.parametrize("kind", SOURCES)
def test_cuda_moves_are_those_of_the_cpu(kind):
    places = []
    for device in ("cpu", "cuda"):
        one, goals = all_wasted(kind, torch.float32)
        layer = one.layer.to(device)
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
        one.rewire.remove()
        moved = Rewire(layer, optimizer)
        moved.load_state_dict(one.rewire.state_dict())
        moved.rewire()
        places.append(held_by(layer.cpu()))
        assert places[-1] == goals
    assert places[0] == places[1]
