"""Every generator goes on where it was."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sparsewire_lab.train.checkpoints import Checkpoints, read_checkpoint
from sparsewire_lab.train.randomness import random_state, seed_all, set_random_state
from sparsewire_lab.train.trial import generator

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


def test_all_generators_go_on_identically_from_a_checkpoint_as_often_as_asked(
    tmp_path: Path,
) -> None:
    """A saved state does not move with the generators, and saving it does not move them."""
    checkpoints = Checkpoints(tmp_path)
    seed_all(3)
    want = [sampled(), sampled(), sampled()]
    seed_all(3)
    assert sampled() == want[0]
    state = random_state(CPU)
    assert sampled() == want[1]
    checkpoints.save({"random": state})
    seed_all(4)
    for _ in range(2):
        set_random_state(read_checkpoint(checkpoints.last)["random"], CPU)
        assert [sampled(), sampled()] == want[1:]


def test_a_seed_decides_every_generator() -> None:
    seed_all(2**33 + 1)
    first = sampled()
    seed_all(2**33 + 1)
    assert sampled() == first
    seed_all(2**33 + 2)
    assert all(a != b for a, b in zip(sampled(), first, strict=True))


def test_generators_of_evaluations_are_apart_from_the_default_one() -> None:
    before = torch.get_rng_state()
    first = torch.randn(5, generator=generator(3, CPU))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(torch.randn(5, generator=generator(3, CPU)), first)
    assert not torch.equal(torch.randn(5, generator=generator(4, CPU)), first)
