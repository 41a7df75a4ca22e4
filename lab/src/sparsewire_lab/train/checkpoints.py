"""Checkpoints: the last one, the one before it and the best, read without running any code."""

import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import NoneType
from typing import Any

import torch

from sparsewire_lab.files import write_whole

FORMAT = "sparsewire checkpoint 1"

# The parts of a state, with their types.
_TABLES = ("arguments", "model", "optimizer", "extras", "meter", "random", "curve", "frames")
_PARTS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("experiment", "run"), (str,)),
    **dict.fromkeys(("seed", "step"), (int,)),
    **dict.fromkeys(("seconds", "best"), (float,)),
    **dict.fromkeys(_TABLES, (dict,)),
    "schedule": (dict, NoneType),
}
_MOST_STEPS = 2**53

Use = Callable[[Path, dict[str, Any]], object]


class CheckpointError(RuntimeError):
    """A file is not a checkpoint that can be used."""


class Checkpoints:
    """The checkpoints of one run, in one folder.

    Args:
        folder: Where they are; made when the first one is saved.
    """

    def __init__(self, folder: Path) -> None:
        self.last = folder / "last.pt"
        self.previous = folder / "previous.pt"
        self.best = folder / "best.pt"

    def exist(self) -> bool:
        """Whether there is anything to continue from."""
        return self.last.exists() or self.previous.exists()

    def save(self, state: dict[str, Any]) -> None:
        """Save a state, of tensors and plain values; the last one becomes the previous."""

        def make_previous() -> None:
            if self.last.exists():
                os.replace(self.last, self.previous)

        write_whole(self.last, packed(state), before=make_previous)

    def save_best(self, state: dict[str, Any]) -> None:
        """Save a state as the best one so far."""
        write_whole(self.best, packed(state))

    def load(self, use: Use | None = None) -> tuple[dict[str, Any], list[str]]:
        """Return the newest state that can be used, and what was wrong with newer ones.

        Args:
            use: Called with a file and its state; raises `CheckpointError` if it cannot use it.

        Raises:
            CheckpointError: If none can be used; it names the files.
        """
        problems: list[str] = []
        for path in filter(Path.exists, (self.last, self.previous)):
            try:
                state = read_checkpoint(path)
                check_state(path, state)
                if use is not None:
                    use(path, state)
                return state, problems
            except CheckpointError as error:
                problems.append(str(error))
        reasons = "; ".join(problems) or f"there is none in {self.last.parent}"
        raise CheckpointError(f"no checkpoint can be used: {reasons}")

    def clear(self) -> None:
        """Remove all of them."""
        for path in (self.last, self.previous, self.best):
            path.unlink(missing_ok=True)


def packed(state: dict[str, Any]) -> bytes:
    """Return the bytes of a checkpoint."""
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, **state}, buffer)
    return buffer.getvalue()


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU, without running any code of the file.

    Raises:
        CheckpointError: If it is cut off, was not written by this library, or holds code.
    """
    try:
        with zipfile.ZipFile(path) as file:  # checksums show flipped bits
            if damaged := file.testzip():
                raise ValueError(f"the checksum of {damaged} is wrong")
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file may lead to any
        reason = str(error).partition("\n")[0].strip() or type(error).__name__
        raise CheckpointError(f"{path} is damaged, or no checkpoint: {reason}") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        other = state.get("format") if isinstance(state, dict) else type(state).__name__
        raise CheckpointError(f"{path} must be a {FORMAT!r}; got {other!r}")
    return state


def check_state(path: Path, state: dict[str, Any]) -> None:
    """Check that a state has all that a run is continued from.

    Raises:
        CheckpointError: If a part is missing or of another type; it names the file.
    """
    if missing := [name for name in _PARTS if name not in state]:
        raise CheckpointError(f"{path} must be a whole checkpoint; it lacks {', '.join(missing)}")
    for name, kinds in _PARTS.items():
        if not isinstance(state[name], kinds) or isinstance(state[name], bool):
            raise CheckpointError(
                f"{path} must have {' or '.join(kind.__name__ for kind in kinds)} as {name}; "
                f"got {type(state[name]).__name__}"
            )
    if not 0 <= state["step"] <= _MOST_STEPS:
        raise CheckpointError(f"{path} must have a step from 0; got {state['step']}")
    steps = state["curve"].get("step", [])
    if any(type(v) is not list or len(v) != len(steps) for v in state["curve"].values()):
        raise CheckpointError(f"{path} must have a curve of lists of one length")
