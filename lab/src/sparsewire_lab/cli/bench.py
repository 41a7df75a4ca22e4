"""`sparsewire bench`: arguments, where things go, and what is said at the end."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sparsewire_lab import provenance
from sparsewire_lab.bench import growth, record
from sparsewire_lab.bench.cases import GROUPS, OWN_ENGINES, plan
from sparsewire_lab.bench.found import Setting
from sparsewire_lab.bench.page import page
from sparsewire_lab.bench.runner import Run, say, start_worker
from sparsewire_lab.bench.worker import WorkerLostError
from sparsewire_lab.cli.main import how_to_install
from sparsewire_lab.errors import INTERRUPTED, Parser, complain

_DESCRIPTION = """\
Measure this machine's ceilings (copy, exp, matrix products), every engine of `spread` beside plain
PyTorch and KeOps, whole training steps of the free layer, glimpse layers, and soft sorts beside
others. Every engine is checked against float64 before it is timed. What would need too much memory
or time is skipped, and what breaks is recorded; neither ends the run. Rows are added to the record
as they come.
"""
_EPILOGUE = """\
examples:
  sparsewire bench --quick                      within a minute on a CPU
  sparsewire bench spread --sizes 64,256,1024
  sparsewire bench sorting --device cpu --threads 1
  sparsewire bench --json > rows.jsonl          rows and nothing else on standard output
  sparsewire bench --merge other.csv            add another machine's record to this one
  sparsewire bench --draw                       make page and figure again from the record

The status is 1 if one of this library's engines failed or was wrong, 130 after an interrupt.
"""


class Places(NamedTuple):
    """Where the record, its page and its figure are, and how the page calls the other two."""

    record: Path
    page: Path
    figure: Path
    record_name: str
    figure_name: str


def main(words: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    parser = make_parser()
    args = parser.parse_args(words)
    _check(parser, args)
    places = find_places(args.out)
    try:
        if args.merge is not None:
            added = record.merge(places.record, args.merge)
            print(f"{added} rows added to {places.record}")
        if args.merge is not None or args.draw:
            publish(places, sys.stdout)
            return 0
        if places.record.exists():
            record.read(places.record)  # a file that cannot be added to is better found out now
    except (OSError, ValueError) as error:
        parser.error(str(error))
    return _run(args, places)


def find_places(out: Path | None) -> Places:
    """Return where things go: into the clone, or beside the file that was asked for."""
    root = provenance.clone()
    usual = None if root is None else root / "benchmarks" / "results.csv"
    if out is None:
        out = Path("sparsewire-bench.csv") if usual is None else usual
    if root is not None and out.resolve() == usual:
        docs = root / "docs"
        figure = docs / "images" / "growth.png"
        name = "images/growth.png"
        return Places(out, docs / "benchmarks.md", figure, "benchmarks/results.csv", name)
    figure = out.with_suffix(".png")
    return Places(out, out.with_suffix(".md"), figure, out.name, figure.name)


def publish(places: Places, file: Any) -> None:
    """Write page and figure from the record; without Matplotlib, say how to get it."""
    rows = record.read(places.record)
    drawn = None
    try:
        from sparsewire_lab.bench.draw import draw

        drawn = places.figure if draw(rows, places.figure) else None
    except ImportError as error:
        say(f"no figure: {error}. For figures: {how_to_install('experiments')}")
    places.page.parent.mkdir(parents=True, exist_ok=True)
    text = page(rows, places.record_name, places.figure_name)
    places.page.write_text(text, encoding="utf-8")
    for name, path in (("record", places.record), ("page", places.page), ("figure", drawn)):
        if path is not None:
            print(f"{name}: {path}", file=file)


def _run(args: argparse.Namespace, places: Places) -> int:
    quick, on_gpu = args.quick, args.device == "cuda"
    setting = Setting(
        device=args.device,
        threads=args.threads,
        budget=0.1 if quick else 0.3 if on_gpu else 0.6,
        table_pairs=2**21 if quick else 2**25,
        checked_pairs=2**21 if quick else 2**33 if on_gpu else 2**25,
    )
    seconds = args.limit or (0.7 if quick else 4.0 if on_gpu else 20.0)
    cases = plan(args.device, quick, args.only, args.sizes)
    columns = {
        "date": provenance.now(),
        "commit": provenance.commit(provenance.clone() or Path(__file__).parent),
        "plan": "quick" if quick else "sizes" if args.sizes else "full",
    }
    rows: list[dict[str, Any]] = []
    interrupted = False
    # Long enough to compile in, short beside the run: only what hangs is stopped.
    patience = 60.0 if quick else max(180.0, 10 * seconds)
    try:
        with Run(start_worker(setting), columns, seconds, patience) as run:
            say(f"{run.columns['device']}: {len(cases)} cases")
            for row in run.perform(cases):
                record.append(places.record, [row])
                rows.append(row)
                if args.json:
                    print(json.dumps(row), flush=True)
    except KeyboardInterrupt:
        interrupted = True
        say(f"\ninterrupted: {len(rows)} of {len(cases)} rows are kept")
    except WorkerLostError as error:
        return complain("sparsewire bench", f"{args.device} could not be used: {error}")
    out = sys.stderr if args.json else sys.stdout
    if rows:
        print("\n" + short_table(rows), file=out)
        publish(places, out)
    bad = [r for r in rows if r["status"] in ("failed", "wrong") and r["engine"] in OWN_ENGINES]
    return INTERRUPTED if interrupted else int(bool(bad))


def short_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the measured rows as a table to read in a terminal."""
    head = ("case", "n", "engine", "forward", "fwd+bwd ms", "MiB", "/ reference", "/ floor")
    lines: list[tuple[str, ...]] = [head]
    for row in rows:
        if (time := row["ms_forward_backward"]) is None:
            continue
        forward, extra, ratio = row["ms_forward"], row["extra_mib"], row["ratio_to_reference"]
        floor = row["floor_ms"]
        name = f"{row['case']} {row['variant']}" if row["case"] in growth.SHAPED else row["case"]
        lines.append(
            (
                name,
                f"{row['n']:,}",
                growth.label(row),
                "" if forward is None else f"{forward:.3g}",
                f"{time:.4g}",
                "" if extra is None else f"{extra:,.1f}",
                "" if ratio is None else f"{ratio:.2f}",
                "" if floor is None else f"{time / floor:,.1f}",
            )
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    left = (0, 2)
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def make_parser() -> Parser:
    """Return the parser of the command's arguments."""
    parser = Parser(
        values={"parts": GROUPS},
        prog="sparsewire bench",
        description=_DESCRIPTION,
        epilog=_EPILOGUE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "parts",
        nargs="*",
        type=_group,
        metavar="PART",
        help=f"some of {', '.join(GROUPS)} (default: all); ceilings are measured always, "
        "floors need them",
    )
    add("--quick", action="store_true", help="few and small sizes: within a minute on a CPU")
    add("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")
    add(
        "--only",
        type=_groups,
        default=(),
        metavar="PART,PART,…",
        help="the same as one word",
    )
    add(
        "--sizes",
        type=_sizes,
        default=(),
        metavar="N,N,…",
        help="sizes n of spread, step and sorting instead of the usual ones",
    )
    add("--threads", type=int, help="threads on the CPU (default: what torch takes)")
    add(
        "--limit",
        type=float,
        metavar="SECONDS",
        help="skip what would take longer for one forward and backward pass "
        "(default: 20 on a CPU, 4 on a GPU, 0.7 with --quick)",
    )
    add(
        "--out",
        type=Path,
        metavar="CSV",
        help="the record to add to (default: benchmarks/results.csv of the clone, elsewhere "
        "sparsewire-bench.csv); page and figure of another record lie beside it",
    )
    add("--json", action="store_true", help="rows as JSON lines on standard output")
    add("--draw", action="store_true", help="measure nothing; make page and figure again")
    add(
        "--merge",
        type=Path,
        metavar="CSV",
        help="measure nothing; add the rows of another record, then as --draw",
    )
    return parser


def _check(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    import torch

    chosen = {*args.parts, *args.only}
    args.only = tuple(name for name in GROUPS if name in chosen or not chosen)
    available = torch.cuda.is_available()
    if args.device is None:
        args.device = "cuda" if available else "cpu"
    elif args.device == "cuda" and not available and not args.draw:
        parser.error("--device cuda needs a CUDA device and a torch built for it; none was found")
    if args.threads is not None and args.threads < 1:
        parser.error(f"--threads must be at least 1; got {args.threads}")
    if args.limit is not None and not args.limit > 0:
        parser.error(f"--limit must be a number of seconds above 0; got {args.limit}")
    if args.out is not None and args.out.suffix != ".csv":
        parser.error(f"--out must name a .csv file; got {args.out}")


def _groups(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in GROUPS]
    if unknown or not names:
        raise argparse.ArgumentTypeError(f"must be some of {','.join(GROUPS)}; got {text!r}")
    return tuple(names)


def _group(text: str) -> str:
    if text not in GROUPS:
        raise argparse.ArgumentTypeError(f"must be one of {','.join(GROUPS)}; got {text!r}")
    return text


def _sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        sizes = ()
    if not sizes or not 2 <= sizes[0] <= sizes[-1] <= 2**22:
        raise argparse.ArgumentTypeError(
            f"must be whole numbers between 2 and {2**22}, with commas between; got {text!r}"
        )
    return sizes
