"""The files of arrays that runs write: how they are read and checked."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from sparsewire_lab.train.records import Record

Arrays = TypeVar("Arrays")


def read_or_note(read: Callable[[Path], Arrays], record: Record, notes: list[str]) -> Arrays | None:
    """Return what is read from a record's file of arrays; None, and a note, if that fails.

    Args:
        read: Reads a file of arrays; it is not called if the record has none.
        record: The record of a run, with its file of arrays under `file`.
        notes: Where the note is added.
    """
    if record["file"] is None:
        return None
    try:
        return read(record["file"])
    # Arrays of the right shapes may still hold numbers that cannot be shown.
    except Exception as error:
        text, name = str(error), str(record["file"])
        notes.append(text if name in text else f"{name}: {text or type(error).__name__}")
        return None


def read_arrays(
    path: Path, kind: type[Arrays], what: str, check: Callable[[Arrays], None]
) -> Arrays:
    """Return the arrays that a run left in a file.

    Args:
        path: The file.
        kind: A named tuple of the arrays; those with a default may be missing.
        what: What the file must hold, in words.
        check: Refuses arrays that are not of one run.

    Raises:
        ValueError: The file lacks these arrays, or they do not agree.
    """
    named: Any = kind
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            absent = [name for name in named._fields if name not in file.files]
            if missing := [name for name in absent if name not in named._field_defaults]:
                raise ValueError(f"it has no array {', '.join(missing)}")
            arrays = kind(**{name: file[name] for name in named._fields if name not in absent})
        check(arrays)
    except OSError:
        raise
    # A damaged archive raises errors of a dozen kinds, from zlib.error to MemoryError.
    except Exception as error:
        raise ValueError(f"{path} must be a file of {what} (.npz); {error}") from error
    return arrays


def check_shapes(
    arrays: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[object, ...]], reason: str
) -> None:
    """Refuse arrays of other shapes; a word in a shape is a size that is unknown."""
    for name, array in arrays.items():
        if array.shape != shapes[name]:
            raise ValueError(
                f"its {name} must be of shape ({', '.join(map(str, shapes[name]))}) as {reason}; "
                f"got {array.shape}"
            )


def check_integers(arrays: Mapping[str, np.ndarray], names: Collection[str]) -> None:
    """Refuse anything but integers in the arrays of these names."""
    for name in names:
        if arrays[name].dtype.kind not in "iu":
            raise ValueError(f"its {name} must be integers; got {arrays[name].dtype}")


def check_images(images: np.ndarray, axes: Sequence[str]) -> None:
    """Refuse anything but bytes of as many axes as these, none of them empty."""
    if images.ndim != len(axes) or 0 in images.shape:
        raise ValueError(f"its images must be of shape ({', '.join(axes)}); got {images.shape}")
    if images.dtype != np.uint8:
        raise ValueError(f"its images must be uint8; got {images.dtype}")


def check_finite(arrays: Mapping[str, np.ndarray], names: Collection[str]) -> None:
    """Refuse NaN and infinity in the arrays of these names."""
    for name in names:
        if not np.isfinite(arrays[name]).all():
            raise ValueError(f"its {name} must be finite; got others")


def nearest(frames: np.ndarray, steps: Sequence[int]) -> list[int]:
    """Return the numbers of the frames nearest to these steps, each once.

    Args:
        frames: (f,) the step of each frame.
        steps: The steps.
    """
    if not steps:
        raise ValueError("steps must name at least one step; got none")
    return list(dict.fromkeys(int(np.abs(frames - step).argmin()) for step in steps))
