"""`sparsewire report`: from folders of records to one HTML page that opens anywhere."""

import sys
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from sparsewire_lab.errors import UsageError
from sparsewire_lab.files import DiskError

_FOLDERS = (Path("results"), Path("out"))
_BENCH = Path("results/bench.csv")


@dataclass(frozen=True)
class Arguments:
    """Write one self-contained HTML page from the records of experiments and benchmarks.

    Nothing is trained, nothing is fetched; the page opens from disk. An example:
    sparsewire report results --out report.html --open
    """

    folders: Positional[tuple[Path, ...]] = ()
    """Folders with records, or files of records; without any, results and out of this folder."""
    out: Path = Path("report.html")
    """The page to write."""
    bench: Path | None = None
    """The record of sparsewire bench; None takes results/bench.csv, if it is here."""
    title: str = "sparsewire: learned wiring"
    """The title of the page."""
    open: bool = False
    """Open the page in a browser."""


def run(arguments: Arguments, words: Sequence[str]) -> int:
    """Write the page, print where it is and what it lacks; return the exit status."""
    del words
    from sparsewire_lab.report.load import load  # slow to import
    from sparsewire_lab.report.page import write_page

    folders = arguments.folders or [folder for folder in _FOLDERS if folder.is_dir()]
    bench = arguments.bench or (_BENCH if _BENCH.is_file() else None)
    try:
        results = load(folders, bench, strict=bool(arguments.folders))
        if not results.records and not results.bench:
            raise ValueError(
                "there are no records in folders results and out here; name a folder, or make "
                "some with: sparsewire identity --size 32"
            )
        page = write_page(results, arguments.out, arguments.title)
    except (OSError, ValueError, DiskError) as error:
        raise UsageError(str(error)) from error
    for item in page.missing:
        print(f"missing: {item.what}; to make it: {item.command}")
    for note in page.notes:
        print(f"left out: {note}", file=sys.stderr)
    print(f"report: {arguments.out} ({arguments.out.stat().st_size / 1e6:.2f} MB)")
    if arguments.open:
        webbrowser.open(arguments.out.resolve().as_uri())
    return 0
