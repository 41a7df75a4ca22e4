"""TensorBoard events, for those who like to watch."""

from pathlib import Path
from types import TracebackType
from typing import Any


class Events:
    """Writes numbers for TensorBoard into a folder; into nothing without a folder.

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._writer is not None:
            self._writer.close()

    def write(self, step: int, numbers: dict[str, float | None]) -> None:
        """Write numbers by name; those that are not known are left out."""
        if self._writer is None:
            return
        for name, number in numbers.items():
            if number is not None:
                self._writer.add_scalar(name, number, step)
