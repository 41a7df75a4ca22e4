"""The page of a record: tables of the newest runs, as Markdown, made from the rows alone."""

from collections.abc import Callable, Sequence
from typing import Any

from sparsewire_lab.bench import growth, targets
from sparsewire_lab.bench.cases import FEW, OURS
from sparsewire_lab.bench.markdown import (
    half_range,
    milliseconds,
    note,
    number,
    origin,
    over,
    table,
)
from sparsewire_lab.bench.runner import quantity
from sparsewire_lab.bench.sorting_page import sorting_section

Row = dict[str, Any]

_INTRODUCTION = """\
# Benchmarks

Written by `sparsewire bench` from its record, `{record}`; not edited by hand. For each device this
is the newest run of every part; a full run stands before a quick one, and before one of chosen
sizes.

- Times are medians, in milliseconds, after a warm-up; on a GPU by events on the stream. *Captured*
  is the replay of a CUDA graph; otherwise every kernel is launched. The forward pass alone is timed
  without gradients. *±* is half the distance between the quartiles of forward and backward:
  differences that are not clearly larger, or that two runs do not agree on, are noise.
- **× ours** is a time divided by that of ours (the engine `auto`, what a user gets without asking)
  at the same size, in the same mode and in the same run: 3 means three times as long as ours. In
  the record, `ratio_to_reference` is the same against the engine `reference`.
- *Extra memory* is the peak of a forward and backward pass above what is held before it: inputs,
  parameters and the state of the optimiser are not counted. A GPU's is that of torch's
  allocator (of a captured call: while capturing), a CPU's the resident memory of the process.
- *Error* is the largest ‖found − exact‖ / ‖exact‖ over the output and every gradient, where exact
  is computed in float64. An engine with more than 10⁻³ is called wrong and is not timed.
- **Time / floor** divides the time by the least that this machine could need, from the ceilings
  that were measured in the same run: bytes over the copy rate, exponentials over the exp rate,
  other operations over the float32 matrix rate, whichever takes longest. The floor counts one
  exponential for every pair of a continuous and an integer tuple in each pass, and every input read
  and every output written once (`src/sparsewire/bench/floors.py`). *Time / near floor* counts only
  pairs that matter in float32, whose share is at least 2⁻²⁴ of the largest of their row: an engine
  that leaves out the others can be faster than the first floor.
"""

_HEADINGS = {
    "spread": (
        "`spread`",
        "n tuples in an n × n matrix, and 24 integer tuples for each: 4 nearest, 2 local, 18 from "
        "everywhere. *All pairs* is ours with `tolerance=0`.",
    ),
    FEW: (
        "`spread` with few integer tuples",
        "As above, with 8 integer tuples for each tuple, m = 8 n.",
    ),
    "step": (
        "Training step of the free layer",
        "`SparseLayer((n,), (n,), tuples=n, local_samples=2, global_samples=18)`, batch 64: "
        "forward, mean squared error to the input, backward, Adam. *Forward and backward* is the "
        "whole step. *All pairs* is with `tolerance=0`, *floor variances* with every variance at "
        "its smallest, as training leaves them.",
    ),
    "glimpse": (
        "Glimpse layers",
        "`HyperLayer` with a wiring for each instance, reading a 1×100×100 image: 4 nearest, 32 "
        "local and 16 global samples for each output. Gradients reach the input and the raw "
        "parameters.",
    ),
}


def page(rows: Sequence[Row], record: str, figure: str) -> str:
    """Return the page.

    Args:
        rows: The record.
        record: Its name, as a reader of the page would look for it.
        figure: Where the figure is, from the page.
    """
    parts = [_INTRODUCTION.format(record=record)]
    found = growth.newest(rows)
    if any(
        growth.series(cases.get("spread", []), "ms_forward_backward") for cases in found.values()
    ):
        parts.append(f"![Time and memory against the size]({figure})\n")
    for device, cases in found.items():
        parts.append(f"## {device}\n")
        if "ceilings" in cases:
            parts.append(_ceilings(cases["ceilings"]))
        if targets.DEVICE in device:
            parts.append(_targets([row for part in cases.values() for row in part]))
        for case, (heading, explanation) in _HEADINGS.items():
            if case in cases:
                parts.append(_section(cases[case], heading, explanation))
        if text := sorting_section(device, cases):
            parts.append(text)
    return "\n".join(parts)


def _ceilings(rows: Sequence[Row]) -> str:
    lines = [
        (row["engine"], f"{quantity(row['rate'])}{row['unit']}" if row["rate"] else "", row["note"])
        for row in rows
    ]
    return (
        "### Ceilings\n\n" + table(("ceiling", "measured", "with"), lines) + f"\n{origin(rows)}\n"
    )


def _targets(rows: Sequence[Row]) -> str:
    lines = []
    for target in targets.TARGETS:
        row = targets.find(target, rows)
        most = f"{target.ms:g} ms" + ("" if target.mib is None else f", {_memory(target.mib)}")
        found, counts = "", [""] * 5
        if row is not None:
            found = f"{milliseconds(row['ms_forward_backward'])} ms, {_memory(row['extra_mib'])}"
            counts = [f"{row[name]:.2g}" for name in ("bytes", "exps", "flops")]
            counts += [f"{milliseconds(row[name])} ms" for name in ("floor_ms", "near_floor_ms")]
        lines.append((target.work, target.before, most, found, *counts))
    head = ("work", "the paper's code", "target", "ours", "bytes", "exps", "flops")
    head = (*head, "floor", "near floor")
    return (
        "### Targets\n\nWhat was set out to be reached; time and extra memory, captured. The "
        "paper's code was timed earlier, on an H200, in no run of this record. "
        "Bytes, exponentials and other operations are what the floor counts.\n\n"
        + table(head, lines)
    )


def _memory(mib: float) -> str:
    return f"{mib / 1024:,.3g} GiB" if mib >= 1024 else f"{mib:,.3g} MiB"


def _section(rows: Sequence[Row], heading: str, explanation: str) -> str:
    columns: list[tuple[str, Callable[[Row], str]]] = [
        ("n", lambda row: f"{row['n']:,}"),
        ("engine", growth.label),
        ("forward", lambda row: milliseconds(row["ms_forward"])),
        ("forward and backward", lambda row: milliseconds(row["ms_forward_backward"])),
        ("±", half_range),
        ("× ours", lambda row: _against_ours(row, rows)),
        ("extra MiB", lambda row: number(row["extra_mib"], "{:,.1f}")),
        ("error", lambda row: number(row["error"], "{:.0e}")),
        ("floor", lambda row: milliseconds(row["floor_ms"])),
        ("by", lambda row: row["floor_limit"] or ""),
        ("time / floor", lambda row: over(row, "floor_ms")),
        ("time / near floor", lambda row: over(row, "near_floor_ms")),
        ("note", note),
    ]
    if rows[0]["case"] == "glimpse":
        columns[0] = ("outputs", lambda row: row["variant"])
        columns.insert(1, ("batch", lambda row: str(row["batch"])))
    lines = [tuple(write(row) for _, write in columns) for row in rows]
    text = f"### {heading}\n\n{explanation}\n\n{table([name for name, _ in columns], lines)}"
    return f"{text}\n{_growth(rows)}{origin(rows)}\n"


def _growth(rows: Sequence[Row]) -> str:
    """Say how fast each engine grows."""
    memory = {line.label: line.exponent for line in growth.series(rows, "extra_mib")}
    lines = [
        (line.label, f"{line.exponent:.2f}", number(memory.get(line.label), "{:.2f}"))
        for line in growth.series(rows, "ms_forward_backward")
        if line.exponent is not None
    ]
    if not lines:
        return ""
    written = table(("engine", "time grows as n to the", "extra memory as n to the"), lines)
    return (
        f"Growth, fitted by least squares in the logarithms to the {growth.LAST} largest sizes "
        f"(at least {growth.LEAST}):\n\n{written}\n"
    )


def _against_ours(row: Row, rows: Sequence[Row]) -> str:
    """Compare with ours; its own variants are compared with what a user gets without asking."""
    same = ("n", "mode", "batch") if row["case"] != "glimpse" else ("n", "mode", "batch", "variant")
    for other in rows:
        usual = other["engine"] == OURS and (not other["variant"] or row["case"] == "glimpse")
        if usual and all(other[name] == row[name] for name in same):
            ours, mine = other["ms_forward_backward"], row["ms_forward_backward"]
            return f"{mine / ours:.2f}" if ours and mine else ""
    return ""
