"""Ten shapes that are easy to tell apart, instead of digits, for the tests of the experiment."""

import torch
from tests.helpers import seeded

from sparsewire_lab.data import Digits
from sparsewire_lab.data.idx import Split

COUNTS: dict[Split, int] = {"train": 30, "validation": 20, "all-train": 50, "test": 24}
"""How many there are of each split; in the test some classes are more frequent than others."""
BRIGHTNESS: dict[Split, int] = {"train": 100, "validation": 7, "all-train": 100, "test": 7}
"""Of every pixel that is not black: it tells whose pieces are on a canvas."""


def load_glyphs(split: Split) -> Digits:
    """Squares of five by five blocks, each of 4 × 4 pixels, the same for a class in all splits."""
    labels = torch.arange(COUNTS[split]) % 10
    if split == "test":
        labels = labels.clamp(max=8)
    shapes = (torch.rand(10, 5, 5, generator=seeded(0)) < 0.5).to(torch.uint8)
    blocks = shapes.repeat_interleave(4, 1).repeat_interleave(4, 2)
    images = torch.nn.functional.pad(blocks, (4,) * 4)[labels]
    return Digits(images * BRIGHTNESS[split], labels)
