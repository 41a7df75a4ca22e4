"""`sparsewire figures`: from a file of records to all the figures that it has runs for."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparsewire_lab.attention.boxes import animate_boxes, draw_boxes
from sparsewire_lab.attention.curves import draw_attention_errors, with_curves
from sparsewire_lab.attention.gallery import draw_glimpses
from sparsewire_lab.attention.settings import settings
from sparsewire_lab.attention.table import fill_attention
from sparsewire_lab.errors import Parser, complain
from sparsewire_lab.figures.pages import fill
from sparsewire_lab.figures.settings import finished
from sparsewire_lab.files import write_whole
from sparsewire_lab.identity.curves import draw_errors, draw_scaling
from sparsewire_lab.identity.table import identity_table
from sparsewire_lab.identity.wiring import animate_wiring, draw_matrix, draw_wiring
from sparsewire_lab.sorting.curves import draw_sorting_errors
from sparsewire_lab.sorting.curves import with_curves as with_sorting_curves
from sparsewire_lab.sorting.keys import draw_keys
from sparsewire_lab.sorting.keys_file import read_keys
from sparsewire_lab.sorting.settings import rank, sorting_settings
from sparsewire_lab.sorting.steps import draw_steps
from sparsewire_lab.sorting.table import fill_sorting
from sparsewire_lab.train import records
from sparsewire_lab.train.records import Record

# The size whose wires the paper shows.
_SHOWN_SIZE = 32


def main(words: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    parser = make_parser()
    args = parser.parse_args(words)
    if not args.records.is_file():
        parser.error(f"{args.records} must be a file of records; there is none")
    if args.page is not None:
        try:
            print(f"table: {write_table(args.page, records.read(args.records))}")
        except (OSError, ValueError) as error:
            parser.error(f"--page: {error}")
    out = args.out or args.records.parent / "figures"
    drawn = draw_all(args.records, out, animation=not args.no_animation)
    for path in drawn:
        print(f"figure: {path}")
    if not drawn:
        hint = "an experiment adds some, such as: sparsewire identity --size 16"
        return complain("sparsewire figures", f"{args.records} holds no runs to draw", hint=hint)
    return 0


def make_parser() -> Parser:
    """Return the parser of the command's arguments."""
    parser = Parser(
        prog="sparsewire figures",
        description="Draw the figures of an experiment (identity, attention or sorting) from its "
        "records. Nothing is trained.",
        epilog="example: sparsewire figures results/identity.jsonl --out docs/images "
        "--page docs/reproduction/identity.md",
    )
    parser.add_argument(
        "records",
        type=Path,
        help="a file of records, such as out/identity.jsonl or out/sorting.jsonl",
    )
    parser.add_argument(
        "--out", type=Path, help="folder for the figures (default: figures beside the records)"
    )
    parser.add_argument(
        "--page",
        type=Path,
        help="also put the tables of the runs into this page, between its marks",
    )
    parser.add_argument(
        "--no-animation", action="store_true", help="draw no GIF of wires or boxes as they move"
    )
    return parser


def draw_all(path: Path, folder: Path, animation: bool = True) -> list[Path]:
    """Draw every figure that a file of records has runs for; return where they are."""
    runs = records.read(path)
    return [
        *_draw_identity(_of(runs, "identity"), path.parent, folder, animation),
        *_draw_attention(_of(runs, "attention"), path.parent, folder, animation),
        *_draw_sorting(_of(runs, "sorting"), path.parent, folder),
    ]


def write_table(path: Path, records: Sequence[Record]) -> Path:
    """Put the tables of these records, all of one experiment, into a page; return the page."""
    page = path.read_text(encoding="utf-8")
    experiments = {record["experiment"] for record in records}
    if len(experiments) > 1:
        raise ValueError(f"records must be of one experiment; got {', '.join(sorted(experiments))}")
    if experiments == {"attention"}:
        filled = fill_attention(page, records)
    elif experiments == {"sorting"}:
        filled = fill_sorting(page, records)
    else:
        filled = fill(page, identity_table(records))
    write_whole(path, filled.encode())
    return path


def _of(runs: Sequence[Record], experiment: str) -> list[Record]:
    return [run for run in runs if run["experiment"] == experiment]


def _draw_identity(runs: Sequence[Record], home: Path, folder: Path, animation: bool) -> list[Path]:
    drawn = []
    plain = [run for run in runs if _has(run, target="identity", values="fixed")]
    if paper := [run for run in plain if not _has(run, method="rewire")]:
        drawn.append(draw_errors(paper, folder / "identity-errors.png"))
    rewired = [run for run in runs if _has(run, method="rewire") and not _has(run, target="band")]
    if rewired:
        drawn.append(draw_errors(rewired, folder / "identity-rewire.png"))
    timed = [run for run in (*plain, *rewired) if _has(run, target="identity")]
    timed = [run for run in timed if not _has(run, method="reinforce")]
    if len({run["arguments"]["size"] for run in timed}) > 1:
        drawn.append(draw_scaling(timed, folder / "identity-scaling.png"))
    shown = [run for run in runs if _has_file(run, home)]
    if shown:
        run = max(shown, key=_worth_seeing)
        wiring = home / run["wiring"]
        name = f"identity-{run['arguments']['size']}"
        drawn.append(draw_matrix(wiring, folder / f"{name}-matrix.png"))
        drawn.append(draw_wiring(wiring, folder / f"{name}-wiring.png", _steps(run)))
        if animation:
            drawn.append(animate_wiring(wiring, folder / f"{name}-wiring.gif"))
    return drawn


def _draw_attention(
    runs: Sequence[Record], home: Path, folder: Path, animation: bool
) -> list[Path]:
    drawn = []
    for canvas in sorted({run["arguments"]["canvas"] for run in runs}):
        splits = (
            [run for run in runs if _has(run, canvas=canvas, split=split)]
            for split in ("test", "validation")
        )
        if there := next(filter(with_curves, splits), None):
            path = folder / f"attention-errors-{canvas}.png"
            drawn.append(draw_attention_errors(there, path))
    for name, looks in _looks_to_draw(runs, home).items():
        drawn.append(draw_glimpses(looks, folder / f"{name}-glimpses.png"))
        drawn.append(draw_boxes(looks, folder / f"{name}-boxes.png"))
        if animation:
            drawn.append(animate_boxes(looks, folder / f"{name}-boxes.gif"))
    return drawn


def _looks_to_draw(runs: Sequence[Record], home: Path) -> dict[str, Path]:
    """Return the files of looks by the names of their figures: of one setting for each name."""
    chosen: dict[str, tuple[tuple[Any, ...], Path]] = {}
    for group in settings(runs):
        there = [run for run in finished(group) if _has_file(run, home)]
        if group.setting["model"] != "glimpse" or not there:
            continue
        run = min(there, key=lambda run: run["seed"])
        name = "attention-{glimpses}x{size}-{canvas}".format(**group.setting)
        # What is published before what was tried, and what was run last.
        worth = _has(run, split="test"), _has(run, preset="ours"), run.get("date", "")
        if name not in chosen or worth >= chosen[name][0]:
            chosen[name] = worth, home / run["wiring"]
    return {name: file for name, (_, file) in chosen.items()}


def _draw_sorting(runs: Sequence[Record], home: Path, folder: Path) -> list[Path]:
    drawn = []
    tasks = {(run["arguments"]["places"], run["arguments"]["data"]) for run in runs}
    for places, data in sorted(tasks):
        splits = (
            [run for run in runs if _has(run, data=data, places=places, split=split)]
            for split in ("test", "validation")
        )
        if there := next(filter(with_sorting_curves, splits), None):
            path = folder / f"sorting-errors-{_task_words(places, data)}.png"
            drawn.append(draw_sorting_errors(there, path))
    for name, keys in _keys_to_draw(runs, home).items():
        drawn.append(draw_keys(keys, folder / f"{name}-keys.png"))
        if read_keys(keys).halves is not None:
            drawn.append(draw_steps(keys, folder / f"{name}-steps.png"))
    return drawn


def _keys_to_draw(runs: Sequence[Record], home: Path) -> dict[str, Path]:
    """Return the files of keys by the names of their figures: of one setting for each name."""
    chosen: dict[str, tuple[tuple[Any, ...], Path]] = {}
    for group in sorting_settings(runs):
        there = [run for run in finished(group) if _has_file(run, home)]
        if not there:
            continue
        run, setting = min(there, key=lambda run: run["seed"]), group.setting
        task = _task_words(setting["places"], setting["data"])
        name = f"sorting-{setting['size']}x{task}"
        name += "-paper" if setting["preset"] == "paper" else ""
        # What is published before what was tried, ours before peers, the longest, the last.
        worth = _has(run, split="test"), -rank(setting), setting["steps"], run.get("date", "")
        if name not in chosen or worth >= chosen[name][0]:
            chosen[name] = worth, home / run["wiring"]
    return {name: file for name, (_, file) in chosen.items()}


def _task_words(places: int, data: str) -> str:
    return f"{places}" if data == "mnist" else f"{places}-{data}"


def _has_file(run: Record, home: Path) -> bool:
    return bool(run.get("wiring")) and (home / run["wiring"]).exists()


def _has(run: Record, **arguments: Any) -> bool:
    return all(run["arguments"].get(name) == value for name, value in arguments.items())


def _worth_seeing(run: Record) -> tuple[bool, str]:
    """The paper's own run first, else what was run last."""
    paper = _has(run, method="sparse", size=_SHOWN_SIZE, target="identity", values="fixed")
    return paper, run.get("date", "")


def _steps(run: Record) -> tuple[int, ...]:
    """The paper's steps; of a shorter run, five that are as far apart."""
    paper = (0, 1000, 5000, 9000, 13000)
    if run["steps"] >= paper[-1]:
        return paper
    return tuple(round(step / paper[-1] * run["steps"]) for step in paper)
