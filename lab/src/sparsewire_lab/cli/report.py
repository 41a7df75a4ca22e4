"""`sparsewire report`: from folders of records to one HTML page that opens anywhere."""

import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from sparsewire_lab.errors import Parser
from sparsewire_lab.files import DiskError
from sparsewire_lab.report.gather import gather
from sparsewire_lab.report.page import TITLE, write_page

_FOLDERS = (Path("results"), Path("out"))
_BENCH = Path("benchmarks/results.csv")


def main(words: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    parser = make_parser()
    args = parser.parse_args(words)
    folders = args.folders or [folder for folder in _FOLDERS if folder.is_dir()]
    bench = args.bench or (_BENCH if _BENCH.is_file() else None)
    try:
        found = gather(folders, bench, strict=bool(args.folders))
        if not found.records and not found.bench:
            raise ValueError(
                "there are no records in folders results and out here; name a folder, or make "
                "some with: sparsewire identity --size 32"
            )
        page = write_page(found, args.out, args.title)
    except (OSError, ValueError, DiskError) as error:
        parser.error(str(error))
    for item in page.absent:
        print(f"absent: {item.what}; to make it: {item.command}")
    for note in page.notes:
        print(f"left out: {note}", file=sys.stderr)
    print(f"report: {args.out} ({args.out.stat().st_size / 1e6:.2f} MB)")
    if args.open:
        webbrowser.open(args.out.resolve().as_uri())
    return 0


def make_parser() -> Parser:
    """Return the parser of the command's arguments."""
    parser = Parser(
        prog="sparsewire report",
        description="Write one self-contained HTML page from the records of experiments and "
        "benchmarks. Nothing is trained, nothing is fetched; the page opens from disk.",
        epilog="example: sparsewire report results --out report.html --open",
    )
    parser.add_argument(
        "folders",
        nargs="*",
        type=Path,
        metavar="FOLDER",
        help="folders with records, or files of records (default: those of results and out that "
        "are here)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("report.html"),
        help="the page to write (default: report.html)",
    )
    parser.add_argument(
        "--bench",
        type=Path,
        help=f"the record of sparsewire bench (default: {_BENCH}, if it is here)",
    )
    parser.add_argument("--title", default=TITLE, help="what stands at the top of the page")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    return parser
