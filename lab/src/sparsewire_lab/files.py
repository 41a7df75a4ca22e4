"""Files that are whole or missing: written under another name, synced, and renamed."""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path


class DiskError(RuntimeError):
    """A file could not be written; what was there before is still there."""


def write_whole(path: Path, data: bytes, before: Callable[[], None] | None = None) -> None:
    """Write a file so that at every moment either the old or the new one is there, complete.

    Args:
        path: The file.
        data: Its content.
        before: Called when the data is on the disk, just before the file gets its name.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with _disk_errors(f"{path} could not be written, {len(data):,} bytes"):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if before is not None:
                before()
            os.replace(temporary, path)
            sync_folder(path.parent)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)


def check_writable(folder: Path) -> None:
    """Create a folder if it is missing, and check that files can be written there.

    Raises:
        DiskError: It cannot be created or written to.
    """
    with _disk_errors(f"{folder} must be a folder to write to"):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass


def append_line(path: Path, line: str) -> None:
    """Add a line to a file, in one write; after a line that was cut off, begin a new one."""
    with _disk_errors(f"{path} could not be added to"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+") as file:
            size = file.seek(0, os.SEEK_END)
            if size:
                file.seek(size - 1)
                line = line if file.read(1) == b"\n" else "\n" + line
            file.write(f"{line}\n".encode())
            file.flush()
            os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make sure that names in a folder are on the disk, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def _disk_errors(problem: str) -> Iterator[None]:
    """Raise a `DiskError` that says the problem, and why, in place of an `OSError`."""
    try:
        yield
    except OSError as error:
        raise DiskError(f"{problem}: {error.strerror or error}") from error
