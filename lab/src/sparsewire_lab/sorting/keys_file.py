"""What a run of the sorting experiment leaves for figures: keys of some numbers, and one sort."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from sparsewire_lab.figures.arrays import check_integers, check_shapes, must_hold, read_arrays


class Keys(NamedTuple):
    """Keys of m numbers at f steps of a run, and how the first n of them, a set, are sorted.

    Methods that do not sort step by step leave no halves and no images.
    """

    step: np.ndarray
    """(f,) integers."""
    keys: np.ndarray
    """(f, m): what the numbers would be sorted by."""
    values: np.ndarray
    """(m,) integers: the numbers."""
    halves: np.ndarray | None = None
    """(f, l, n, n): the half-permutations of the set, rows are places, columns elements."""
    images: np.ndarray | None = None
    """(n, p, h, w) bytes: pictures of the digits of the set."""


class Sort(NamedTuple):
    """The pictures of a set while it is sorted: as they come, and after each half-permutation."""

    values: np.ndarray
    """(l + 1, n, p, h, w) from 0 to 1."""
    targets: np.ndarray
    """The same of the sorted target, sent back through the transposes, itself at last."""


def read_keys(path: Path) -> Keys:
    """Return the keys that a run left in a file.

    Raises:
        ValueError: The file has not these arrays, or their shapes do not agree.
    """
    with must_hold(path, "keys"):
        kept = Keys(**read_arrays(path, Keys._fields, optional=("halves", "images")))
        _check(kept)
    return kept


def sort_of(kept: Keys, frame: int) -> Sort:
    """Return the set as it is sorted by the keys of a frame.

    Raises:
        ValueError: The run has left no half-permutations.
    """
    if kept.halves is None or kept.images is None:
        raise ValueError("keys must have halves and images to show how a set is sorted; got none")
    halves = kept.halves[frame].astype(np.float64)
    pictures = kept.images.reshape(len(kept.images), -1) / 255
    values = [pictures]
    for half in halves:
        values.append(half @ values[-1])
    targets = [pictures[kept.values[: len(pictures)].argsort(kind="stable")]]
    for half in halves[::-1]:
        targets.append(half.T @ targets[-1])
    shape = (len(values), *kept.images.shape)
    return Sort(*(np.clip(rows, 0, 1).reshape(shape) for rows in (values, targets[::-1])))


def misplaced(kept: Keys, frame: int) -> int:
    """Return how many numbers of the set are in a wrong place when it is sorted by its keys.

    Equal numbers may change places.
    """
    if kept.images is None:
        raise ValueError("keys must have the images of a set; got none")
    count = len(kept.images)
    values = kept.values[:count]
    found = values[kept.keys[frame, :count].argsort(kind="stable")]
    return int((found != np.sort(values)).sum())


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Return the correlation of the ranks of two lists, NaN if all of one are equal.

    Examples:
        >>> round(spearman(np.array([1, 2, 3, 4]), np.array([0.1, 0.2, 0.9, 0.3])), 3)
        0.8
    """
    first, second = (ranks - ranks.mean() for ranks in (_ranks(a), _ranks(b)))
    scale = float(np.sqrt((first**2).sum() * (second**2).sum()))
    return float((first * second).sum()) / scale if scale else float("nan")


def _ranks(numbers: np.ndarray) -> np.ndarray:
    """Ranks from 1; equal numbers share the mean of theirs."""
    _, which, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    return (counts.cumsum() - (counts - 1) / 2)[which]


def _check(kept: Keys) -> None:
    """Refuse arrays that are not of one run."""
    if kept.keys.ndim != 2 or 0 in kept.keys.shape:
        raise ValueError(f"its keys must be of shape (frames, numbers); got {kept.keys.shape}")
    if (kept.halves is None) != (kept.images is None):
        raise ValueError("it must have halves and images, or none of them; got one of the two")
    f, m = kept.keys.shape
    shapes: dict[str, tuple[object, ...]] = {"step": (f,), "keys": (f, m), "values": (m,)}
    reason = f"its keys are of {kept.keys.shape}"
    if kept.halves is not None and kept.images is not None:
        if kept.images.ndim != 4 or 0 in kept.images.shape or len(kept.images) > m:
            raise ValueError(
                f"its images must be of shape (at most {m}, digits, height, width); "
                f"got {kept.images.shape}"
            )
        if kept.images.dtype != np.uint8:
            raise ValueError(f"its images must be uint8; got {kept.images.dtype}")
        n = len(kept.images)
        levels = kept.halves.shape[1] if kept.halves.ndim > 1 else "levels"
        shapes |= {"halves": (f, levels, n, n), "images": kept.images.shape}
        reason += f", its images of {kept.images.shape}"
    arrays = {name: array for name, array in kept._asdict().items() if array is not None}
    check_shapes(arrays, shapes, reason)
    check_integers(arrays, ("step", "values"))
    for name in {"keys", "halves"} & arrays.keys():
        if not np.isfinite(arrays[name]).all():
            raise ValueError(f"its {name} must be finite; got others")
