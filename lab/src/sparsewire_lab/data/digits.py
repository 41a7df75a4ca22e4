"""The small digits that scikit-learn brings along, made to look like MNIST: nothing to fetch."""

import numpy as np
import torch
from torch.nn.functional import interpolate, pad

from sparsewire_lab.data.idx import SIDE, Digits, Split, check_split

HELD_OUT = 300
"""Digits for validation, and as many for the test."""
_INNER = 20  # MNIST fits its digits into a box of 20 × 20 too
_MARGIN = (SIDE - _INNER) // 2
_FULL = 16  # the largest value of a pixel


def load_digits(split: Split) -> Digits:
    """Return digits of scikit-learn, 8 × 8 pixels made 28 × 28: 1,197, 300 and 300 of them.

    Args:
        split: "train", "validation", "all-train", which is both, or "test".
    """
    check_split(split)
    from sklearn.datasets import load_digits as load  # slow to import

    small, labels = load(return_X_y=True)
    # The old generator of NumPy, because its numbers are promised to stay what they are.
    order = np.random.RandomState(0).permutation(len(labels))
    first, second = len(order) - 2 * HELD_OUT, len(order) - HELD_OUT
    slices = {
        "train": slice(None, first),
        "validation": slice(first, second),
        "all-train": slice(None, second),
        "test": slice(second, None),
    }
    chosen = order[slices[split]]
    pictures = torch.from_numpy(small[chosen]).float().reshape(-1, 1, 8, 8) / _FULL
    large = interpolate(pictures, (_INNER, _INNER), mode="bilinear", align_corners=False)
    # What is blurred is made sharper: strokes of MNIST are white inside and black outside.
    sharp = ((large - 0.5) * 1.5 + 0.5).clamp(0, 1)
    images = pad(sharp, (_MARGIN,) * 4)[:, 0].mul(255).round().to(torch.uint8)
    return Digits(images, torch.from_numpy(labels[chosen]).long())
