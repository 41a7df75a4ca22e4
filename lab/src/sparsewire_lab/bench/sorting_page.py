"""The part of the page that is about sorting: there only if the record has such rows."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparsewire_lab.bench import growth, sorting_targets
from sparsewire_lab.bench.case import OURS
from sparsewire_lab.bench.markdown import (
    half_range,
    milliseconds,
    note,
    number,
    origin,
    over,
    table,
)
from sparsewire_lab.bench.sorting_cases import HARD, NEIGHBOURS, SORTING
from sparsewire_lab.bench.sorting_targets import SortingTarget

Row = dict[str, Any]

_INTRODUCTION = """\
### Soft sorts

Batch 64, keys from a normal distribution, forward and backward, every engine with the options it
has by default. `torch.sort` is hard: what sorting costs at all. SoftSort, NeuralSort, Sinkhorn,
odd-even and bitonic are `sparsewire_lab.sorting.peers`, which make a matrix: it is applied to the
values, its transpose to the places; *bitonic, no matrix* sorts the values by the same network and
nothing else. Packages of others are named as they are installed. Peers are functions of their own:
the *error* of one is its float32 against its own float64, that of ours is against the products of
all matrices in float64, over some of the instances. The floor is every key, value and gradient read
and written once.
"""

_HEADINGS = {
    "soft_rank": "Places of the elements, `soft_rank(x)`.",
    "soft_sort": "Elements in order, `soft_sort(x)`.",
    "sort_by": "A payload in the order of its keys, `sort_by(keys, payload)`; every key has a "
    "payload of shape {payload}. Gradients reach both.",
    "order_loss": "A loss where the order is known: `order_loss(keys, numbers)`, of random numbers "
    "of three digits; *neighbours* has a reach of one. A matrix gives the cross-entropy of its "
    "rows, torchsort the squared error of ranks. ListMLE is the likelihood of picking the largest, "
    "then the next.",
}

_REACHED = {True: "yes", False: "no", None: ""}


def sorting_section(device: str, cases: Mapping[str, Sequence[Row]]) -> str:
    """Return the section of a device, empty if nothing of it was measured.

    Args:
        device: As the record names it.
        cases: Rows of the newest run of each case.
    """
    here = {case: cases[case] for case in SORTING if case in cases}
    if not here:
        return ""
    every = [row for rows in here.values() for row in rows]
    parts = [_INTRODUCTION, _targets(sorting_targets.targets_for(device), every), _best(every)]
    parts += [_case(case, rows) for case, rows in here.items()]
    return "\n".join(filter(None, parts))


def _targets(targets: Sequence[SortingTarget], rows: Sequence[Row]) -> str:
    if not targets:
        return ""
    lines = []
    for target in targets:
        found = sorting_targets.find(target, rows)
        cells = ("", "", "")
        if found is not None:
            fastest = "" if found.fastest is None else _named_time(found.fastest)
            if target.peers and found.fastest is None:
                fastest = "none of them ran"
            cells = (fastest, f"{milliseconds(found.ms)} ms", _REACHED[found.reached])
        lines.append((target.work, target.before, _most(target), *cells))
    head = ("work", "the paper's code", "target", "fastest of those", "ours", "reached")
    return (
        "#### Targets of sorting\n\nWhat was set out to be reached. The paper's code was timed "
        "earlier, in no run of this record; peers that did not fit, or are not installed, do not "
        "count: the tables below say why.\n\n" + table(head, lines)
    )


def _most(target: SortingTarget) -> str:
    if not target.peers:
        return f"{milliseconds(target.most)} ms"
    if len(target.peers) == 1:
        return f"{target.most:g} × {growth.LABELS[target.peers[0]]}"
    return "less than SoftSort, NeuralSort, diffsort and OTT"


def _best(rows: Sequence[Row]) -> str:
    """Put ours beside the fastest soft peer, at each size."""
    lines = []
    for row in rows:
        if row["engine"] != OURS or not row["ms_forward_backward"]:
            continue
        alike = [other for other in rows if _same(row, other) and other["ms_forward_backward"]]
        hard = [other for other in alike if other["engine"] == HARD]
        soft = [other for other in alike if other["engine"] not in (OURS, NEIGHBOURS, HARD)]
        best = min(soft, key=lambda other: other["ms_forward_backward"], default=None)
        ours = row["ms_forward_backward"]
        lines.append(
            (
                f"`{row['case']}`",
                f"{row['n']:,}",
                row["mode"],
                milliseconds(ours),
                milliseconds(hard[0]["ms_forward_backward"]) if hard else "",
                "" if best is None else _named_time(best),
                "" if best is None else f"{best['ms_forward_backward'] / ours:.3g}",
            )
        )
    if not lines:
        return ""
    head = ("case", "n", "mode", "ours", "torch.sort", "fastest soft peer", "peer / ours")
    return (
        "#### Ours and the fastest peer\n\nMilliseconds, forward and backward, in the same run. A "
        "last column above 1 means that ours is faster.\n\n" + table(head, lines)
    )


def _case(case: str, rows: Sequence[Row]) -> str:
    columns: list[tuple[str, Callable[[Row], str]]] = [
        ("n", lambda row: f"{row['n']:,}"),
        ("engine", growth.label),
        ("forward", lambda row: milliseconds(row["ms_forward"])),
        ("forward and backward", lambda row: milliseconds(row["ms_forward_backward"])),
        ("±", half_range),
        ("× ours", lambda row: _against_ours(row, rows)),
        ("extra MiB", lambda row: number(row["extra_mib"], "{:,.1f}")),
        ("error", lambda row: number(row["error"], "{:.0e}")),
        ("time / floor", lambda row: over(row, "floor_ms")),
        ("note", note),
    ]
    lines = [tuple(write(row) for _, write in columns) for row in rows]
    explanation = _HEADINGS[case].format(payload=rows[0]["variant"])
    written = table([name for name, _ in columns], lines)
    return f"#### `{case}`\n\n{explanation}\n\n{written}\n{origin(rows)}\n"


def _against_ours(row: Row, rows: Sequence[Row]) -> str:
    for other in rows:
        if other["engine"] == OURS and _same(row, other):
            ours, mine = other["ms_forward_backward"], row["ms_forward_backward"]
            return f"{mine / ours:.2f}" if ours and mine else ""
    return ""


def _same(row: Row, other: Row) -> bool:
    return all(row[name] == other[name] for name in ("case", "n", "mode", "batch", "variant"))


def _named_time(row: Row) -> str:
    return f"{growth.label(row)}, {milliseconds(row['ms_forward_backward'])} ms"
