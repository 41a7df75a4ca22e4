"""A run: performs every case in turn, and yields each row as soon as it is complete."""

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sparsewire_lab.bench import floors
from sparsewire_lab.bench.cases import Case
from sparsewire_lab.bench.limits import Limits, reason_to_skip
from sparsewire_lab.bench.record import Row, complete
from sparsewire_lab.bench.worker import WorkerLostError


class Run(contextlib.AbstractContextManager["Run"]):
    """Performs cases one after the other, and survives whatever fails in one of them.

    Args:
        start: Starts a `Worker`, or a substitute in tests.
        columns: Columns that all rows share: the date, the commit.
        seconds: The most one forward and backward pass may be expected to take.
        patience: Seconds after which a case is stopped.
    """

    def __init__(
        self, start: Callable[[], Any], columns: Row, seconds: float, patience: float
    ) -> None:
        self._start, self._patience = start, patience
        self._worker: Any = start()
        about = self._worker.about
        self.columns = {**columns, **about["columns"]}
        self._limits = Limits(about["memory"], seconds, about["absent"])
        self.rows: list[Row] = []

    def __exit__(self, *_: object) -> None:
        if self._worker is not None:
            self._worker.stop()

    def perform(self, cases: Sequence[Case]) -> Iterator[Row]:
        """Yield a complete row for each case."""
        for number, case in enumerate(cases, start=1):
            say(f"[{number:{len(str(len(cases)))}}/{len(cases)}] {case} … ", end="")
            row = complete({**self.columns, **_columns(case), **self._perform(case)})
            self._add_floors(case, row)
            row["ratio_to_reference"] = _ratio(row, self.rows)
            self.rows.append(row)
            say(summary(row))
            yield row

    def _perform(self, case: Case) -> Row:
        if reason := reason_to_skip(case, self.rows, self._limits):
            return {"status": "skipped", "note": reason}
        try:
            if self._worker is None:
                self._worker = self._start()
            results, sound = self._worker.perform(case, self._patience)
        except WorkerLostError as error:
            results, sound = {"status": "failed", "note": str(error)}, False
        if not sound and self._worker is not None:
            self._worker.stop()
            self._worker = None
        return results

    def _add_floors(self, case: Case, row: Row) -> None:
        if (works := floors.works_of(case)) is None:
            return
        row.update(works[1]._asdict())
        rates = {r["engine"]: r["rate"] for r in self.rows if r["case"] == "ceilings" and r["rate"]}
        columns = {"floor_forward_ms": works[0], "floor_ms": works[1]}
        if row["near_pairs"] is not None and (near := floors.works_of(case, row["near_pairs"])):
            columns["near_floor_ms"] = near[1]
        for column, work in columns.items():
            if (least := floors.floor(work, rates)) is not None:
                row[column], limit = least
                if column == "floor_ms":
                    row["floor_limit"] = limit


def summary(row: Row) -> str:
    """Return one line about a row."""
    if row["rate"]:
        return f"{quantity(row['rate'])}{row['unit']}"
    if row["status"] != "ok":
        # The note of a wrong engine begins with the word.
        return row["note"] if row["status"] == "wrong" else f"{row['status']}: {row['note']}"
    times = [row["ms_forward"], row["ms_forward_backward"]]
    parts = [" / ".join(f"{ms:.4g} ms" for ms in times if ms is not None)]
    if row["extra_mib"] is not None:
        parts.append(f"{row['extra_mib']:,.1f} MiB")
    if row["error"] is not None:
        parts.append(f"error {row['error']:.0e}")
    if row["ratio_to_reference"] not in (None, 1.0):
        parts.append(f"{row['ratio_to_reference']:.2f} × reference")
    if row["floor_ms"] and row["ms_forward_backward"]:
        parts.append(f"{row['ms_forward_backward'] / row['floor_ms']:,.1f} × floor")
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
    """Report progress on standard error."""
    print(text, file=sys.stderr, end=end, flush=True)


def _columns(case: Case) -> Row:
    row: Row = {**dataclasses.asdict(case), "note": ""}
    if case.case == "ceilings":
        row.update(n=None, batch=None)
    if (sizes := floors.sizes_of(case)) is not None:
        row.update(contexts=sizes.contexts, k=sizes.k, m=sizes.m, r=sizes.r, pairs=sizes.pairs)
    return row


def _ratio(row: Row, rows: Sequence[Row]) -> float | None:
    """Divide the time by that of the reference at this size, in the same mode, or else eager."""
    if row["ms_forward_backward"] is None:
        return None
    if row["engine"] == "reference":
        return 1.0
    same = ("case", "n", "batch", *(["variant"] if row["case"] == "glimpse" else []))
    times = {
        other["mode"]: other["ms_forward_backward"]
        for other in rows
        if other["engine"] == "reference" and all(other[name] == row[name] for name in same)
    }
    reference = times.get(row["mode"]) or times.get("eager")
    return row["ms_forward_backward"] / reference if reference else None
