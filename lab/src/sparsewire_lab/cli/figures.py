"""`sparsewire figures`: all figures and tables that a file of records has runs for."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tyro.conf import Positional

from sparsewire_lab.errors import UsageError, complain
from sparsewire_lab.train import records
from sparsewire_lab.train.record_checks import has_errors
from sparsewire_lab.train.records import Record

if TYPE_CHECKING:
    from sparsewire_lab.figures.album import Album


@dataclass(frozen=True)
class Arguments:
    """Draw the figures of an experiment from its records. Nothing is trained.

    Example: sparsewire figures results/identity.jsonl --out docs/images
    """

    records: Positional[Path]
    """A file of records, such as out/identity.jsonl or out/sorting.jsonl."""
    out: Path | None = None
    """Folder for the figures; None takes the folder figures next to the records."""
    page: Path | None = None
    """A Markdown page to write the tables of the runs into, between its marks."""
    animation: bool = True
    """Draw GIFs of wires and boxes as they move."""


def run(args: Arguments, words: Sequence[str]) -> int:
    """Draw the figures and print where they are; return the exit status."""
    del words
    if not args.records.is_file():
        raise UsageError(f"{args.records} must be a file of records; there is none")
    if args.page is not None:
        runs, _ = records.read_all(args.records)
        try:
            print(f"table: {write_table(args.page, runs)}")
        except (OSError, ValueError) as error:
            raise UsageError(f"--page: {error}") from error
    out = args.out or args.records.parent / "figures"
    album = draw_all(args.records, out, args.animation)
    print_drawn(album)
    if not album.drawn:
        hint = "an experiment adds some, such as: sparsewire identity --size 16"
        return complain("sparsewire figures", f"{args.records} holds no runs to draw", hint=hint)
    return 0


def draw_all(path: Path, folder: Path, animation: bool = True) -> "Album":
    """Draw every figure that a file of records has runs for.

    Returns where the figures are, and a note on every record, file of arrays or figure that was
    left out.
    """
    from sparsewire_lab.attention import figures as attention  # slow to import
    from sparsewire_lab.figures.album import Album
    from sparsewire_lab.identity import figures as identity
    from sparsewire_lab.label_ranking import figures as label_ranking
    from sparsewire_lab.sorting import figures as sorting

    runs, notes = records.read_all(path)
    album = Album(path, folder, animation)
    album.notes += notes
    for name, module in (("identity", identity), ("attention", attention), ("sorting", sorting)):
        chosen = [run for run in runs if run["experiment"] == name and has_errors(run)]
        module.draw([run | {"file": records.array_file(run, path.parent)} for run in chosen], album)
    label_ranking.draw([run for run in runs if run["experiment"] == "label-ranking"], album)
    return album


def print_drawn(album: "Album") -> None:
    """Print the files of an album, and what was left out to standard error."""
    for path in album.drawn:
        print(f"figure: {path}")
    for note in album.notes:
        print(f"left out: {note}", file=sys.stderr)


def write_table(path: Path, runs: Sequence[Record]) -> Path:
    """Write the tables of records, all of one experiment, into a page; return the page."""
    from sparsewire_lab.attention.table import fill_attention  # slow to import
    from sparsewire_lab.files import write_whole
    from sparsewire_lab.identity.table import fill_identity
    from sparsewire_lab.label_ranking.table import fill_label_ranking
    from sparsewire_lab.sorting.table import fill_sorting

    experiments = sorted({run["experiment"] for run in runs})
    if len(experiments) > 1:
        raise ValueError(f"records must be of one experiment; got {', '.join(experiments)}")
    fills = {
        "attention": fill_attention,
        "label-ranking": fill_label_ranking,
        "sorting": fill_sorting,
    }
    fill = fills.get("".join(experiments), fill_identity)
    write_whole(path, fill(path.read_text(encoding="utf-8"), runs).encode())
    return path
