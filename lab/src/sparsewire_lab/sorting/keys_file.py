"""The file that a run of the sorting experiment writes: keys of some numbers, and one sort."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from sparsewire_lab.figures.arrays import (
    check_finite,
    check_images,
    check_integers,
    check_shapes,
    read_arrays,
)


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
    """Return the keys that a run left in a file; errors are those of `read_arrays`."""
    return read_arrays(path, Keys, "keys", _check)


def sort_of(keys: Keys, frame: int) -> Sort:
    """Return the set as it is sorted by the keys of a frame.

    Raises:
        ValueError: The run has left no half-permutations.
    """
    if keys.halves is None or keys.images is None:
        raise ValueError("keys must have halves and images to show how a set is sorted; got none")
    halves = keys.halves[frame].astype(np.float64)
    pictures = keys.images.reshape(len(keys.images), -1) / 255
    values = [pictures]
    for half in halves:
        values.append(half @ values[-1])
    targets = [pictures[keys.values[: len(pictures)].argsort(kind="stable")]]
    for half in halves[::-1]:
        targets.append(half.T @ targets[-1])
    shape = (len(values), *keys.images.shape)
    return Sort(*(np.clip(rows, 0, 1).reshape(shape) for rows in (values, targets[::-1])))


def misplaced(keys: Keys, frame: int) -> int:
    """Return how many numbers of the set are in a wrong place when it is sorted by its keys.

    Equal numbers may change places.
    """
    if keys.images is None:
        raise ValueError("keys must have the images of a set; got none")
    count = len(keys.images)
    values = keys.values[:count]
    in_order = values[keys.keys[frame, :count].argsort(kind="stable")]
    return int((in_order != np.sort(values)).sum())


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Return the correlation of the ranks of two lists, NaN if all of one are equal.

    Examples:
        >>> round(spearman(np.array([1, 2, 3, 4]), np.array([0.1, 0.2, 0.9, 0.3])), 3)
        0.8
    """
    ranks = []
    for numbers in (a, b):
        _, which, counts = np.unique(numbers, return_inverse=True, return_counts=True)
        ranks.append((counts.cumsum() - counts / 2)[which])  # equal numbers share their mean rank
    with np.errstate(invalid="ignore"):
        return float(np.corrcoef(ranks)[0, 1])


def _check(keys: Keys) -> None:
    """Refuse arrays that are not of one run."""
    if keys.keys.ndim != 2 or 0 in keys.keys.shape:
        raise ValueError(f"its keys must be of shape (frames, numbers); got {keys.keys.shape}")
    if (keys.halves is None) != (keys.images is None):
        raise ValueError("it must have halves and images, or none of them; got one of the two")
    f, m = keys.keys.shape
    shapes: dict[str, tuple[object, ...]] = {"step": (f,), "keys": (f, m), "values": (m,)}
    reason = f"its keys are of {keys.keys.shape}"
    if keys.halves is not None and keys.images is not None:
        check_images(keys.images, ("numbers", "digits", "height", "width"))
        if (n := len(keys.images)) > m:
            raise ValueError(f"its images must be at most the {m} of its keys; got {n}")
        levels = keys.halves.shape[1] if keys.halves.ndim > 1 else "levels"
        shapes |= {"halves": (f, levels, n, n), "images": keys.images.shape}
        reason += f", its images of {keys.images.shape}"
    arrays = {name: array for name, array in keys._asdict().items() if array is not None}
    check_shapes(arrays, shapes, reason)
    check_integers(arrays, ("step", "values"))
    check_finite(arrays, {"keys", "halves"} & arrays.keys())
