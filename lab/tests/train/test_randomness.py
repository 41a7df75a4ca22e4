"""Every generator goes on where it was."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sparsewire_lab.train.checkpoints import Checkpoints, read_checkpoint
from sparsewire_lab.train.randomness import random_state, seed_all, set_random_state

CPU = torch.device("cpu")


def draw() -> list[Any]:
    # One Gaussian of each: Python and NumPy make two and keep the second.
    return [
        random.random(),
        random.gauss(0.0, 1.0),
        random.randrange(10**9),
        np.random.rand(),
        np.random.standard_normal(),
        np.random.randint(10**9),
        torch.rand(()).item(),
        torch.randn(3).tolist(),
        torch.randperm(100).tolist(),
    ]


def test_all_generators_go_on_identically() -> None:
    seed_all(3)
    draw()
    state = random_state(CPU)
    want = [draw(), draw()]
    seed_all(4)
    assert draw() != want[0]
    set_random_state(state, CPU)
    assert [draw(), draw()] == want


def test_they_go_on_after_a_checkpoint(tmp_path: Path) -> None:
    seed_all(5)
    draw()
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save({"random": random_state(CPU)})
    want = draw()
    seed_all(0)
    set_random_state(read_checkpoint(checkpoints.last)["random"], CPU)
    assert draw() == want


def test_a_saved_state_does_not_move_with_the_generators() -> None:
    seed_all(0)
    state = random_state(CPU)
    want = draw()
    set_random_state(state, CPU)
    assert draw() == want
    set_random_state(state, CPU)
    assert draw() == want


def test_asking_for_the_state_changes_nothing() -> None:
    seed_all(1)
    want = draw()
    seed_all(1)
    random_state(CPU)
    assert draw() == want


def test_a_seed_decides_every_generator() -> None:
    seed_all(2**33 + 1)
    first = draw()
    seed_all(2**33 + 1)
    assert draw() == first
    seed_all(2**33 + 2)
    assert all(a != b for a, b in zip(draw(), first, strict=True))
