"""TensorBoard events, for those who like to look at a run."""

import sys
from pathlib import Path
from typing import Any


class Events:
    """Writes numbers and pictures for TensorBoard into a folder; into nothing without a folder.

    Args:
        folder: Where the events go.
        start: Steps made before. What an earlier part of the run wrote after them is forgotten.
    """

    def __init__(self, folder: Path | None, start: int) -> None:
        self._writer: Any = None
        if folder is not None:
            from torch.utils.tensorboard import SummaryWriter  # slow to import

            self._writer = SummaryWriter(str(folder), purge_step=start + 1 if start else None)

    def __enter__(self) -> "Events":
        return self

    def __exit__(self, *_: object) -> None:
        self._try("close")

    @property
    def wanted(self) -> bool:
        """Whether anything is written."""
        return self._writer is not None

    def write(self, step: int, numbers: dict[str, float | None]) -> None:
        """Write numbers by name; those that are not known are left out."""
        for name, number in numbers.items():
            if number is not None:
                self._try("add_scalar", name, number, step)

    def show(self, step: int, pictures: dict[str, Any]) -> None:
        """Write pictures by name: arrays of shape (height, width, 3) in uint8."""
        for name, picture in pictures.items():
            self._try("add_image", name, picture, step, dataformats="HWC")

    def _try(self, method: str, *arguments: Any, **options: Any) -> None:
        """Call the writer, if there is one; where that fails, say so and go on without it."""
        if self._writer is None:
            return
        try:
            getattr(self._writer, method)(*arguments, **options)
        except OSError as error:
            self._writer = None
            print(f"TensorBoard events end here: {error.strerror or error}", file=sys.stderr)
