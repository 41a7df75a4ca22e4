"""A run: every case in turn, each row recorded as soon as it is known."""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from sparsewire_lab.bench import floors
from sparsewire_lab.bench.cases import Case, sizes_of
from sparsewire_lab.bench.limits import Limits, reason_to_skip
from sparsewire_lab.bench.record import complete
from sparsewire_lab.bench.sorting_cases import SORTING
from sparsewire_lab.bench.sorting_floors import sorting_work
from sparsewire_lab.bench.worker import Worker, WorkerLostError

Row = dict[str, Any]


@runtime_checkable
class Performer(Protocol):
    """What performs cases: a `Worker`, or what stands in for one."""

    about: dict[str, Any]

    def perform(self, case: Case, seconds: float) -> tuple[Row, bool]:
        """Return what was found, and whether the performer can go on after it."""
        ...

    def stop(self) -> None:
        """Let it end."""
        ...


class Run:
    """Performs cases one after the other, and outlives whatever breaks in one of them.

    Args:
        start: Starts a performer.
        columns: Columns that all rows share: the date, the commit.
        seconds: The most one forward and backward pass may be expected to take.
        patience: Seconds after which a case is stopped.
    """

    def __init__(
        self,
        start: Callable[[], Performer],
        columns: Row,
        seconds: float,
        patience: float,
    ) -> None:
        self._start, self._patience = start, patience
        self._performer: Performer | None = start()
        about = self._performer.about
        self.columns = {**columns, **about["columns"]}
        self._limits = Limits(about["memory"], seconds, about["keops"], about.get("absent", ()))
        self.rows: list[Row] = []

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        if self._performer is not None:
            self._performer.stop()

    def perform(self, cases: Sequence[Case]) -> Iterator[Row]:
        """Yield a complete row for each case."""
        for number, case in enumerate(cases, start=1):
            say(f"[{number:{len(str(len(cases)))}}/{len(cases)}] {case} … ", end="")
            found = self._find(case)
            row = complete({**self.columns, **_columns(case), **found})
            self._add_floors(case, row)
            row["ratio_to_reference"] = _ratio(row, self.rows)
            self.rows.append(row)
            say(summary(row))
            yield row

    def _find(self, case: Case) -> Row:
        if reason := reason_to_skip(case, self.rows, self._limits):
            return {"status": "skipped", "note": reason}
        try:
            if self._performer is None:
                self._performer = self._start()
            found, sound = self._performer.perform(case, self._patience)
        except WorkerLostError as error:
            found, sound = {"status": "failed", "note": str(error)}, False
        if not sound and self._performer is not None:
            self._performer.stop()
            self._performer = None
        return found

    def _add_floors(self, case: Case, row: Row) -> None:
        if case.case == "ceilings":
            return
        rates = {r["engine"]: r["rate"] for r in self.rows if r["case"] == "ceilings" and r["rate"]}
        if case.case in SORTING:
            forward, work = sorting_work(case)
        else:
            sizes = sizes_of(case)
            forward, work = floors.forward(sizes), floors.forward_backward(sizes)
            row["pairs"] = sizes.pairs
            if (near := row["near_pairs"]) is not None:
                least = floors.floor(floors.forward_backward(sizes, near), rates)
                row["near_floor_ms"] = None if least is None else least.ms
        row.update(work._asdict())
        if (least := floors.floor(work, rates)) is not None:
            row["floor_ms"], row["floor_limit"] = least
        if (least := floors.floor(forward, rates)) is not None:
            row["floor_forward_ms"] = least.ms


def summary(row: Row) -> str:
    """Say in a line what a row says."""
    if row["rate"]:
        return f"{quantity(row['rate'])}{row['unit']}"
    if row["status"] != "ok":
        # The note of a wrong engine says so itself.
        return row["note"] if row["status"] == "wrong" else f"{row['status']}: {row['note']}"
    times = [row["ms_forward"], row["ms_forward_backward"]]
    parts = [" / ".join(f"{ms:.4g} ms" for ms in times if ms is not None)]
    if row["extra_mib"] is not None:
        parts.append(f"{row['extra_mib']:,.1f} MiB")
    if row["error"] is not None:
        parts.append(f"error {row['error']:.0e}")
    if row["note"]:
        parts.append(row["note"])
    return ", ".join(parts)


def quantity(number: float) -> str:
    """Write a large number with a prefix: 4.31 T."""
    for prefix, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= scale:
            return f"{number / scale:.3g} {prefix}"
    return f"{number:.3g} "


def say(text: str, end: str = "\n") -> None:
    """Report progress, where it is in the way of nothing."""
    print(text, file=sys.stderr, end=end, flush=True)


def start_worker(setting: Any) -> Callable[[], Performer]:
    """Return what starts a worker with this setting."""
    return lambda: Worker(setting)


def _columns(case: Case) -> Row:
    row: Row = {
        "case": case.case,
        "variant": case.variant,
        "engine": case.engine,
        "mode": case.mode,
        "note": "",
    }
    if case.case != "ceilings":
        row.update(n=case.n, batch=case.batch)
    if case.case not in ("ceilings", *SORTING):
        sizes = sizes_of(case)
        row.update(contexts=sizes.contexts, k=sizes.k, m=sizes.m, r=sizes.r)
    return row


def _ratio(row: Row, rows: Sequence[Row]) -> float | None:
    """Divide the time by the reference's at the same size: in the same mode, or else eager."""
    if row["ms_forward_backward"] is None:
        return None
    if row["engine"] == "reference":
        return 1.0
    same = ("case", "n", "batch", *(["variant"] if row["case"] == "glimpse" else []))
    alike = [
        other
        for other in rows
        if other["engine"] == "reference" and all(other[name] == row[name] for name in same)
    ]
    for mode in (row["mode"], "eager"):
        for other in alike:
            if other["mode"] == mode and other["ms_forward_backward"]:
                return row["ms_forward_backward"] / other["ms_forward_backward"]
    return None
