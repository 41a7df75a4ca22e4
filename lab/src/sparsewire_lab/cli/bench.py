"""`sparsewire bench`: measure this machine, add to a record, and write its page."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tyro.conf import Positional

from sparsewire_lab.errors import INTERRUPTED, UsageError, complain

Part = Literal["ceilings", "spread", "step", "glimpse", "sorting", "properties", "canvases"]


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Measure time, memory and accuracy of every engine, of peers and of training steps.

    First this machine's ceilings are measured: copy, exp, matrix products. Every engine is checked
    against float64 before it is timed. What would need too much memory or time is skipped, and what
    fails is recorded; neither ends the run. Rows are added to the record as they come. Examples:

    sparsewire bench --quick

    sparsewire bench spread --sizes 64 256 1024

    sparsewire bench --json > rows.jsonl

    sparsewire bench --record results/bench.csv --page docs/benchmarks.md

    The status is 1 if one of this library's engines failed or was wrong, 130 after an interrupt.
    """

    parts: Positional[tuple[Part, ...]] = ()
    """What to measure; without any, everything. Ceilings come with all parts that have floors."""
    quick: bool = False
    """Few and small sizes: within a minute on a CPU."""
    device: Literal["cpu", "cuda"] | None = None
    """None takes a GPU where there is one."""
    sizes: tuple[int, ...] = ()
    """Sizes n of spread, step and sorting instead of the usual ones, from 2 to 10000000; those of
    spread and step to 4194304."""
    threads: int | None = None
    """Threads on the CPU; None takes torch's number."""
    limit: float | None = None
    """Skip what would take more seconds for one forward and backward pass; None takes 20 on a CPU,
    4 on a GPU, 0.7 with --quick."""
    budget: float | None = None
    """Seconds for the repeats of a call; None takes 0.6 on a CPU, 0.3 on a GPU, 0.1 with
    --quick."""
    out: Path = Path("out")
    """Folder of the record."""
    record: Path | None = None
    """The record to add to, a .csv file; None takes bench.csv in the folder of --out."""
    page: Path | None = None
    """Write the page of the record to this .md file, and beside it its figure, images/growth.png,
    and the page of soft sorts, league.md."""
    json: bool = False
    """Print rows as JSON lines, and nothing else, on standard output."""
    draw: bool = False
    """Measure nothing; only write --page."""
    merge: Path | None = None
    """Measure nothing; add the rows of this other record, and write --page if given."""

    def check(self) -> None:
        """Raise a `UsageError` for arguments that cannot be used."""
        for name in ("threads", "limit", "budget"):
            if (value := getattr(self, name)) is not None and not value > 0:
                raise UsageError(f"--{name} must be above 0; got {value}")
        if wrong := [n for n in self.sizes if not 2 <= n <= 10**7]:
            raise UsageError(f"--sizes must be between 2 and {10**7}; got {wrong[0]}")
        for name, suffix in (("record", ".csv"), ("page", ".md")):
            path = getattr(self, name)
            if path is not None and path.suffix != suffix:
                raise UsageError(f"--{name} must be a {suffix} file; got {path}")
        if self.draw and self.page is None:
            raise UsageError("--draw needs --page, the file to write")


def run(arguments: Arguments, words: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    del words
    arguments.check()
    from sparsewire_lab.bench import record

    path = arguments.record or arguments.out / "bench.csv"
    try:
        if arguments.merge is not None:
            print(f"{record.merge(path, arguments.merge)} rows added to {path}")
        if arguments.draw or arguments.merge is not None:
            publish(path, arguments.page, sys.stdout)
            return 0
        if path.exists():
            record.read(path)  # fail now, not after the first case
    except (OSError, ValueError) as error:
        raise UsageError(str(error)) from error
    return _measure(arguments, path)


def publish(path: Path, page: Path | None, file: Any) -> None:
    """Print where the record is; write its page and its figure, if a page is given."""
    from sparsewire_lab import provenance
    from sparsewire_lab.bench.figure import draw
    from sparsewire_lab.bench.page import FIGURE, LEAGUE_PAGE, make_league, make_page
    from sparsewire_lab.bench.record import read

    rows, root = read(path), provenance.clone()
    print(f"record: {path}", file=file)
    if page is None:
        return
    inside = root is not None and path.resolve().is_relative_to(root)
    name = path.resolve().relative_to(root).as_posix() if root and inside else path.name
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(make_page(rows, name), encoding="utf-8")
    print(f"page: {page}", file=file)
    if league := make_league(rows, name):
        (page.parent / LEAGUE_PAGE).write_text(league, encoding="utf-8")
        print(f"page: {page.parent / LEAGUE_PAGE}", file=file)
    if draw(rows, page.parent / FIGURE):
        print(f"figure: {page.parent / FIGURE}", file=file)


def _measure(arguments: Arguments, path: Path) -> int:
    import torch  # slow to import

    from sparsewire_lab import provenance
    from sparsewire_lab.bench.cases import GROUPS, OWN_ENGINES, plan
    from sparsewire_lab.bench.perform import Setting
    from sparsewire_lab.bench.record import append
    from sparsewire_lab.bench.runner import Run, say
    from sparsewire_lab.bench.worker import Worker, WorkerLostError

    quick, device = arguments.quick, arguments.device
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda needs a CUDA device and a torch built for it")
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device == "cuda"
    setting = Setting(
        device=device,
        threads=arguments.threads,
        budget=arguments.budget or (0.1 if quick else 0.3 if on_gpu else 0.6),
        table_pairs=2**21 if quick else 2**25,
        checked_pairs=2**21 if quick else 2**33 if on_gpu else 2**25,
    )
    seconds = arguments.limit or (0.7 if quick else 4.0 if on_gpu else 20.0)
    cases = plan(device, quick, arguments.parts or GROUPS, arguments.sizes)
    columns = {
        "date": provenance.now(),
        "commit": provenance.commit(provenance.clone() or Path(__file__).parent),
        "plan": "quick" if quick else "sizes" if arguments.sizes else "full",
    }
    rows: list[dict[str, Any]] = []
    # Long enough to compile in: only what hangs is stopped.
    patience = 60.0 if quick else max(180.0, 10 * seconds)
    try:
        with Run(lambda: Worker(setting), columns, seconds, patience) as running:
            say(f"{running.columns['device']}: {len(cases)} cases")
            for row in running.perform(cases):
                append(path, [row])
                rows.append(row)
                if arguments.json:
                    print(json.dumps(row), flush=True)
        status = 0
    except KeyboardInterrupt:
        status = INTERRUPTED
        say(f"\ninterrupted: {len(rows)} of {len(cases)} rows are recorded")
    except WorkerLostError as error:
        return complain("sparsewire bench", f"{device} could not be used: {error}")
    if rows:
        publish(path, arguments.page, sys.stderr if arguments.json else sys.stdout)
    bad = [r for r in rows if r["status"] in ("failed", "wrong") and r["engine"] in OWN_ENGINES]
    return status or int(bool(bad))
