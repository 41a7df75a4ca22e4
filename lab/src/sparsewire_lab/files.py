"""Files that are whole or missing: written under another name, synced, and renamed."""

import contextlib
import os
import tempfile
from collections.abc import Callable
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
    except OSError as error:
        raise DiskError(
            f"{path} could not be written, {len(data):,} bytes: {error.strerror or error}"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def check_writable(folder: Path) -> None:
    """Create a folder if it is missing, and check that files can be written there.

    Raises:
        DiskError: It cannot be created or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = error.strerror or error
        raise DiskError(f"{folder} must be a folder to write to: {reason}") from error


def append_line(path: Path, line: str) -> None:
    """Add a line to a file, in one write; after a line that was cut off, begin a new one."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+") as file:
            size = file.seek(0, os.SEEK_END)
            if size:
                file.seek(size - 1)
                line = line if file.read(1) == b"\n" else "\n" + line
            file.write(f"{line}\n".encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise DiskError(f"{path} could not be added to: {error.strerror or error}") from error


def sync_folder(folder: Path) -> None:
    """Make sure that names in a folder are on the disk, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
