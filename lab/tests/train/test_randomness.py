"""Every generator goes on where it was."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sparsewire_lab.train.checkpoints import Checkpoints, read_checkpoint
from sparsewire_lab.train.randomness import random_state, seed_all, set_random_state

CPU = torch.device("cpu")


def sampled() -> list[Any]:
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


def test_all_generators_go_on_identically_as_often_as_asked() -> None:
    """A saved state does not move with the generators, and saving it does not move them."""
    seed_all(3)
    want = [sampled(), sampled(), sampled()]
    seed_all(3)
    assert sampled() == want[0]
    state = random_state(CPU)
    assert sampled() == want[1]
    seed_all(4)
    assert sampled() != want[0]
    for _ in range(2):
        set_random_state(state, CPU)
        assert [sampled(), sampled()] == want[1:]


def test_they_go_on_after_a_checkpoint(tmp_path: Path) -> None:
    seed_all(5)
    sampled()
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save({"random": random_state(CPU)})
    want = sampled()
    seed_all(0)
    set_random_state(read_checkpoint(checkpoints.last)["random"], CPU)
    assert sampled() == want


def test_a_seed_decides_every_generator() -> None:
    seed_all(2**33 + 1)
    first = sampled()
    seed_all(2**33 + 1)
    assert sampled() == first
    seed_all(2**33 + 2)
    assert all(a != b for a, b in zip(sampled(), first, strict=True))
