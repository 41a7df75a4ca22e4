"""Downloads that continue where they broke off, and archives that are bounded before use."""

import contextlib
import gzip
import http.client
import io
import os
import re
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from email.message import Message
from pathlib import Path

from sparsewire_lab.files import DiskError

MOST_BYTES = 2**26
"""Largest size of a file, packed or not."""
TIMEOUT = 10.0
"""Seconds without an answer after which a server is given up."""

_TRIES = 4
_CHUNK = 2**16
_RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)")


class SourceError(RuntimeError):
    """A source does not have a file; another one may."""


class BrokenOffError(SourceError):
    """A connection ended early; what was received is stored, and can be continued."""


def download(url: str, part: Path) -> bool:
    """Fetch a file, continuing what an earlier try left.

    Args:
        url: The address.
        part: The file to write; it stays when the connection breaks off.

    Returns:
        Whether the file was put together from several tries, which may not fit together.
    """
    pieced = False
    for _ in range(_TRIES):
        before = size_of(part)
        try:
            return _continue(url, part) or pieced
        except BrokenOffError:
            if size_of(part) <= before:
                raise
            pieced = True
    raise BrokenOffError(f"{url}: the connection broke off {_TRIES} times")


def unpack(data: bytes, most: int = MOST_BYTES) -> bytes:
    """Return what a gzip file holds; refuse one that is damaged or holds more than `most` bytes."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            whole = file.read(most + 1)
    except (EOFError, OSError, zlib.error) as error:
        raise SourceError(f"not a whole gzip file: {error}") from error
    if len(whole) > most:
        raise SourceError(f"must hold at most {most:,} bytes; it holds more")
    return whole


def size_of(path: Path) -> int:
    """Return how many bytes a file has, 0 if there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Create a folder and lock it against other processes, where the system can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DiskError(f"{folder} could not be made: {error.strerror or error}") from error
    try:
        import fcntl
    except ImportError:
        yield
        return
    # The folder itself is locked, so that no lock file is left.
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _continue(url: str, part: Path) -> bool:
    """Fetch the rest of a file; return whether there was something to continue."""
    have = size_of(part)
    headers = {"User-Agent": "sparsewire", **({"Range": f"bytes={have}-"} if have else {})}
    try:
        response = urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=TIMEOUT
        )
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and have:  # nothing follows
            if _content_range(error.headers)[1] == have:
                return True
            return _restart(url, part)
        raise SourceError(f"{url}: HTTP status {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise SourceError(f"{url}: {_reason(error)}") from error
    with response:
        begin, whole = 0, None
        if response.status == 206:
            begin, whole = _content_range(response.headers)
            if begin != have:
                if not have:
                    raise SourceError(f"{url}: a part was sent, though the whole was requested")
                return _restart(url, part)
        if whole is None and (length := response.headers.get("Content-Length")):
            whole = begin + int(length) if length.isdecimal() else None
        _write(url, response, part, begin, whole)
    return begin > 0


def _restart(url: str, part: Path) -> bool:
    """Delete what was received and fetch the whole file."""
    part.unlink(missing_ok=True)
    return _continue(url, part)


def _write(
    url: str, response: http.client.HTTPResponse, part: Path, begin: int, whole: int | None
) -> None:
    """Append what is received, and check that it is as much as was announced."""
    got = begin
    try:
        with part.open("ab" if begin else "wb") as file:
            for chunk in _chunks(url, response):
                got += len(chunk)
                if got > MOST_BYTES:
                    break
                file.write(chunk)
    except OSError as error:
        raise DiskError(f"{part} could not be written: {error.strerror or error}") from error
    if got > MOST_BYTES:
        part.unlink(missing_ok=True)
        raise SourceError(f"{url}: must have at most {MOST_BYTES:,} bytes; it has more")
    if whole is not None and got != whole:
        if got > whole:
            part.unlink(missing_ok=True)
        raise BrokenOffError(f"{url}: broke off after {got:,} of {whole:,} bytes")


def _chunks(url: str, response: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yield what is received; a connection that fails is an error of the source, not the disk."""
    while True:
        try:
            chunk = response.read(_CHUNK)
        except (OSError, http.client.HTTPException) as error:
            raise BrokenOffError(f"{url}: broke off: {_reason(error)}") from error
        if not chunk:
            return
        yield chunk


def _content_range(headers: Message) -> tuple[int, int | None]:
    """Return where a part begins, −1 if unknown, and how many bytes the whole file has."""
    match = _RANGE.fullmatch(headers.get("Content-Range", ""))
    if match is None:
        return -1, None
    begin, whole = match.groups()
    return (-1 if begin is None else int(begin)), (None if whole == "*" else int(whole))


def _reason(error: BaseException) -> str:
    inner = getattr(error, "reason", None)
    return str(inner or error) or type(error).__name__
