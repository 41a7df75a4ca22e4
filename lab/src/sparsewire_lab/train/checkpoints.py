"""Checkpoints: the last one, the one before it and the best, read without running any code."""

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import torch

from sparsewire_lab.files import write_whole

FORMAT = "sparsewire checkpoint 1"


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
        write_whole(self.last, packed(state), before=self._keep_last)

    def save_best(self, state: dict[str, Any]) -> None:
        """Save a state as the best one so far."""
        write_whole(self.best, packed(state))

    def load(self) -> tuple[dict[str, Any], list[str]]:
        """Return the newest state that can be read, and what was wrong with newer ones.

        Raises:
            CheckpointError: If none can be read.
        """
        problems: list[str] = []
        for path in (self.last, self.previous):
            if not path.exists():
                continue
            try:
                return read_checkpoint(path), problems
            except CheckpointError as error:
                problems.append(str(error))
        found = "; ".join(problems) or f"there is none in {self.last.parent}"
        raise CheckpointError(f"no checkpoint can be used: {found}")

    def clear(self) -> None:
        """Remove all of them."""
        for path in (self.last, self.previous, self.best):
            path.unlink(missing_ok=True)

    def _keep_last(self) -> None:
        if self.last.exists():
            os.replace(self.last, self.previous)


def packed(state: dict[str, Any]) -> bytes:
    """Return the bytes of a checkpoint."""
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, **state}, buffer)
    return buffer.getvalue()


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU. Nothing in the file is run.

    Raises:
        CheckpointError: If it is cut off, was not written by this library, or holds code.
    """
    try:
        with zipfile.ZipFile(path) as file:  # what torch writes; its checksums tell of flipped bits
            if damaged := file.testzip():
                raise ValueError(f"the checksum of {damaged} is wrong")
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file may lead to any
        reason = str(error).partition("\n")[0].strip() or type(error).__name__
        raise CheckpointError(f"{path} is damaged, or no checkpoint: {reason}") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        found = state.get("format") if isinstance(state, dict) else type(state).__name__
        raise CheckpointError(f"{path} must be a {FORMAT!r}; got {found!r}")
    return state
