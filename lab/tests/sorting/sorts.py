"""Small trials of the sorting experiment, and shapes that take the place of its digits."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from tests.helpers import seeded

from sparsewire_lab.cli.main import main
from sparsewire_lab.data import Digits
from sparsewire_lab.data.idx import Split
from sparsewire_lab.sorting.experiment import Method, Sorting
from sparsewire_lab.sorting.trial import SortingTrial

CPU = torch.device("cpu")
METHODS: tuple[Method, ...] = get_args(Method)
LOSSES: dict[Method, tuple[str, ...]] = {
    "likelihood": ("order",),
    "exact": ("permutation", "pixels", "steps"),
    "sampled": ("permutation", "pixels", "steps"),
    "neuralsort": ("permutation", "pixels"),
    "softsort": ("permutation", "pixels"),
    "sinkhorn": ("permutation", "pixels"),
    "projection": ("ranks",),
    "odd_even": ("permutation", "pixels"),
    "bitonic": ("permutation", "pixels"),
}
"""What each method can be trained by, that it takes by itself among them."""
EVERY = [(method, loss) for method, losses in LOSSES.items() for loss in losses]

of_every_method = pytest.mark.parametrize("method", METHODS)
of_every_pair = pytest.mark.parametrize(("method", "loss"), EVERY)

BRIGHTNESS: dict[Split, int] = {"train": 100, "validation": 50, "all-train": 200, "test": 10}
"""Of the first of a split's pictures; others are brighter by one each."""


def load_shapes(split: Split) -> Digits:
    """Three pictures of each digit, the same shapes in all splits, each with a brightness of its
    own."""
    shapes = (torch.rand(10, 7, 7, generator=seeded(0)) < 0.5).to(torch.uint8)
    labels = torch.arange(30) % 10
    bright = BRIGHTNESS[split] + torch.arange(30, dtype=torch.uint8)
    large = shapes.repeat_interleave(4, 1).repeat_interleave(4, 2)
    return Digits(large[labels] * bright[:, None, None], labels)


def small(**options: Any) -> Sorting:
    """A setting that takes no time: 4 numbers of 1 digit, the small network, few sets."""
    given: dict[str, Any] = {"data": "digits", "device": "cpu", "batch": 4, "steps": 10}
    given |= {"size": 4, "places": 1, "sets": 6, "network": "wide"}
    return Sorting(**{**given, **options})


def checked(args: Sorting) -> Sorting:
    """As the command does it."""
    args.check()
    return args.resolved()


def build(seed: int = 0, **options: Any) -> SortingTrial:
    args = checked(small(**options))
    torch.manual_seed(seed)
    return args.build(seed, CPU)


def run(out: Path, *words: str) -> dict[str, Any]:
    """Run the command for four steps, unless it is told otherwise; return its record."""
    few = "--size 4 --places 1 --batch 4 --steps 4 --sets 20 --evaluate-every 3"
    where = ["--data", "digits", "--device", "cpu", "--out", str(out)]
    assert main(["sorting", *where, *few.split(), "--quiet", "--no-tensorboard", *words]) == 0
    (line,) = (out / "sorting.jsonl").read_text().splitlines()
    return json.loads(line)
