"""What the files of arrays that runs leave have in common: how they are read and checked."""

import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np


def read_arrays(
    path: Path, names: Collection[str], optional: Collection[str] = ()
) -> dict[str, np.ndarray]:
    """Return the arrays of these names; those that are optional may be missing."""
    with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
        wanted = [name for name in names if name not in optional or name in file.files]
        if missing := [name for name in wanted if name not in file.files]:
            raise ValueError(f"it has no array {', '.join(missing)}")
        return {name: file[name] for name in wanted}


@contextmanager
def must_hold(path: Path, what: str) -> Iterator[None]:
    """Turn what goes wrong while a file is read into an error that names it."""
    try:
        yield
    # A file of one array is opened as that array, which is no context.
    except (ValueError, EOFError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} must be a file of {what} (.npz); {error}") from error


def check_shapes(
    arrays: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[object, ...]], reason: str
) -> None:
    """Refuse arrays of other shapes; a word in a shape stands for a size that was not found."""
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


def nearest(frames: np.ndarray, steps: Sequence[int]) -> list[int]:
    """Return the numbers of the frames nearest to these steps, each once.

    Args:
        frames: (f,) the step of each frame.
        steps: Where to look.
    """
    if not steps:
        raise ValueError("steps must name at least one step; got none")
    return list(dict.fromkeys(int(np.abs(frames - step).argmin()) for step in steps))
