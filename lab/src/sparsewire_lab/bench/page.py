"""The page of a record: one table for each device and case, as Markdown, from the rows alone."""

import statistics
from collections.abc import Collection, Mapping, Sequence

from sparsewire_lab.bench import growth, targets
from sparsewire_lab.bench.cases import (
    FEW,
    FORWARD_ONLY,
    HARD,
    NEIGHBOURS,
    OURS,
    OWN_ENGINES,
    WITHOUT_TIME,
)
from sparsewire_lab.bench.properties import EXPLAINED
from sparsewire_lab.bench.record import Row
from sparsewire_lab.bench.runner import quantity
from sparsewire_lab.figures.tables import markdown

_INTRODUCTION = """\
# Benchmarks

How much time and memory our functions and layers take, next to plain PyTorch, KeOps and other soft
sorts, and next to the least that the machine could need. `sparsewire bench` writes this page
(option `--page`) from its record, `{record}`, which has more columns: forward passes alone,
noise and errors of each row, why a case was skipped. The page shows the newest full run of a case.

- **Time** is the median of a forward and backward pass in milliseconds, after a warm-up; on a GPU
  by events on the stream. *Captured* is the replay of a CUDA graph.
- **Memory** is the peak of that pass in MiB above what is held before it. A GPU's is that of
  torch's allocator, a CPU's the resident memory of the process.
- **Ours** is the engine `auto`, what a user gets without asking; *reference* and *chunked* are
  other engines of this library, *compiled* was one. The last column divides the time of the fastest
  peer by ours: above 1, ours is faster. A dash means skipped: too much memory, too slow, or not
  installed.
- **Floor** is the least time in which the machine could do the work, from the ceilings below: bytes
  over the copy rate, exponentials over the exp rate, other operations over the float32 matrix rate,
  whichever is longest. It counts every pair of a continuous and an integer tuple; an engine that
  skips negligible pairs can be faster.
- **Error** is the largest ‖result − exact‖ / ‖exact‖ over the output and every gradient, where
  exact is computed in float64. Above 10⁻³ an engine is called wrong and is not timed. Other soft
  sorts are functions of their own, compared with themselves in float64.
- **∝ n^** is the exponent of a power law, fitted to the {last} largest sizes (at least {least}).

{cases}"""

CASES = {
    "spread": "`spread` of n tuples in an n × n matrix, 24 integer tuples for each: 4 nearest, 2 "
    "local, 18 from everywhere; *all pairs* is ours with `tolerance=0`",
    FEW: "the same, with 8 integer tuples for each tuple",
    "step": "a training step of `SparseLayer((n,), (n,), tuples=n, schedule=None)`, 24 integer "
    "tuples for each: batch 64, mean squared error to the input, Adam; *floor variances* has every "
    "variance at its smallest, as training leaves them",
    "contexts": "a training step of a layer of 2²⁰ × 2²⁰ with 65,536 tuples in contexts of 64, "
    "24 integer tuples for each, batch 4",
    "glimpse": "`HyperLayer` with a wiring for each instance, reading 1×100×100 pixels: 4 nearest, "
    "32 local and 16 global samples for each output; gradients reach input and raw parameters",
    "order_loss": "a loss where the order is known, `order_loss(keys, numbers)`; *neighbours* has "
    "a reach of one; the loss of a matrix is the cross-entropy of its rows, that of torchsort the "
    "squared error of ranks; batch 64",
    "canvases": "making 128 canvases of n × n pixels, the data of a step of `sparsewire "
    "attention`; nothing is differentiated",
}

_LEAGUE = """\
# Soft sorts compared

What our soft sorts and those of others cost, and what they can do. `sparsewire bench sorting
properties` measures both, on a CPU or a GPU, into `{record}`, from which this page is made; rows
have the versions of all packages. [Benchmarks](benchmarks.md) says how times, memory, floors and
errors are measured.

All functions have the options that they have by default, in float32, with normal keys. Time is that
of a forward and a backward pass. torch.sort is hard: the least that sorting costs. SoftSort,
NeuralSort and DFTopK are written from their papers (`sparsewire_lab.sorting.peers` and
`sparsewire_lab.bench.peers`); other names are packages. OTT takes 100 steps, unrolled. A cell
without a number says why: too much *memory*, too *slow* for the limit of the run, a network that
needs a *power of two*, *missing* on this machine.

Three packages did not install as they are. SoftTorch asks for Python 3.12; pip was told to ignore
that. torchsort and LapSum (its authors' repository; by default only its
top-k is built) are C++ extensions; without a GPU they were built without their CUDA parts.
{gpu}
{cases}"""
_WHY = {"would need": "memory", "power of two": "power of two", "not installed": "missing"}
_NO_GPU = "\n**On a GPU nothing has been measured yet** since our soft sorts were rebuilt.\n"

LEAGUE = {
    "soft_rank": "places of the elements",
    "soft_sort": "elements in order",
    "sort_by": "a payload in the order of its keys: 16 numbers each, or 3×784; both get gradients",
    "soft_topk_mask": "how far each element belongs to the largest tenth",
    "soft_permutation": "the matrix: n² numbers for each row",
}

# The figure, and the page of soft sorts, relative to the page.
FIGURE = "images/growth.png"
LEAGUE_PAGE = "league.md"
_VERSIONS = ("python", "torch", "numpy", "triton", "keops", "sparsewire")
_REACHED = {True: "yes", False: "no", None: ""}


def make_page(rows: Sequence[Row], record: str) -> str:
    """Return the page of everything but soft sorts.

    Args:
        rows: The record.
        record: Its name, as the page mentions it.
    """
    newest = growth.newest(rows)
    parts = [
        _INTRODUCTION.format(
            record=record, cases=_explained(CASES, newest), last=growth.LAST, least=growth.LEAST
        )
    ]
    spread = [measured.get("spread", []) for measured in newest.values()]
    if any(growth.series(part, "ms_forward_backward") for part in spread):
        parts.append(f"![Time and memory against the size]({FIGURE})\n")
    return "\n".join([*parts, *_devices(newest, CASES)])


def make_league(rows: Sequence[Row], record: str) -> str:
    """Return the page of soft sorts, ours and those of others; empty if none was measured."""
    newest = {
        device: measured
        for device, measured in growth.newest(rows).items()
        if measured.keys() & {*LEAGUE, WITHOUT_TIME}
    }
    if not newest:
        return ""
    on_cpus = all(device.endswith("threads") for device in newest)
    gpu, explained = _NO_GPU if on_cpus else "", _explained(LEAGUE, newest)
    parts = [_LEAGUE.format(record=record, gpu=gpu, cases=explained)]
    abilities = [part[WITHOUT_TIME] for part in newest.values() if WITHOUT_TIME in part]
    if abilities:
        parts.append(_abilities(abilities[0]))
    return "\n".join([*parts, *_devices(newest, LEAGUE)])


def _explained(cases: Mapping[str, str], newest: Mapping[str, Mapping[str, Sequence[Row]]]) -> str:
    known = [case for case in cases if any(case in measured for measured in newest.values())]
    return markdown(("case", "what is measured"), [(f"`{case}`", cases[case]) for case in known])


def _devices(
    newest: Mapping[str, Mapping[str, Sequence[Row]]], cases: Mapping[str, str]
) -> list[str]:
    parts = []
    for device, here in newest.items():
        if not any(case in here for case in cases):
            continue
        parts.append(f"## {device}\n")
        if "ceilings" in here:
            parts.append(_ceilings(here["ceilings"]))
        parts += _targets(device, here, cases)
        for case in cases:
            rows = here.get(case, ())
            variants = dict.fromkeys(row["variant"] for row in rows) if case == "sort_by" else [""]
            for variant in variants:
                section = [row for row in rows if case != "sort_by" or row["variant"] == variant]
                parts += [_section(case, section)] if section else []
    return parts


def _abilities(rows: Sequence[Row]) -> str:
    """Return the table of properties: a line for each engine."""
    found = {growth.label(row): parse_abilities(row) for row in rows if row["status"] == "ok"}
    names = list(dict.fromkeys(name for answers in found.values() for name in answers))
    lines = [[who, *(found[who].get(name, "") for name in names)] for who in found]
    tried = "\n".join(f"- **{name}**: {text}" for name, text in EXPLAINED.items() if name in names)
    return (
        "## Properties\n\nEach cell was tried by `sparsewire_lab.bench.properties`, on ranks, "
        "values in order and the mask of the largest,\nwhichever an engine has. A dash: it does "
        f"not apply. Tests check our row.\n\n{markdown(('', *names), lines)}\n{tried}\n\n"
        f"{_origin(rows)}\n"
    )


def parse_abilities(row: Row) -> dict[str, str]:
    """Return the properties that a row has, and the answers."""
    pairs = (part.partition(": ") for part in row["note"].split("; "))
    return {name: answer for name, _, answer in pairs}


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table, without its empty columns."""
    used = [i for i in range(len(head)) if any(line[i] for line in lines)]
    head, *lines = ([row[i].replace("|", "\\|") for i in used] for row in (head, *lines))
    return markdown(head, lines)


def _number(value: float | None) -> str:
    """Write three digits of a number, a dash for none."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _memory(mib: float | None) -> str:
    if mib is None:
        return "–"
    return f"{mib / 1024:,.3g} GiB" if mib >= 1024 else f"{mib:,.3g} MiB"


def _origin(rows: Sequence[Row]) -> str:
    row = rows[0]
    versions = ", ".join(f"{name} {row[name]}" for name in _VERSIONS if row[name])
    quick = " quick run;" if row["plan"] == "quick" else ""
    packages = sorted({row["package"] for row in rows if row["package"]})
    versions = ", ".join(filter(None, (versions, *packages)))
    return f"{row['date']};{quick} commit `{row['commit'][:12]}`; {versions}."


def _ceilings(rows: Sequence[Row]) -> str:
    rates = [f"{row['engine']} {quantity(row['rate'])}{row['unit']}" for row in rows if row["rate"]]
    return f"Ceilings: {', '.join(rates)}. {_origin(rows)}\n"


def _targets(device: str, cases: Mapping[str, Sequence[Row]], shown: Collection[str]) -> list[str]:
    lines = []
    for target in targets.targets_for(device):
        if target.case not in shown:
            continue
        cells = ("", "", "")
        if (result := targets.find(target, cases.get(target.case, ()))) is not None:
            ours, fastest, reached = result
            named = "none of them ran" if target.peers else ""
            if fastest is not None:
                named = f"{growth.label(fastest)}, {_time(fastest)}"
            took = f"{_time(ours)}, {_memory(ours['extra_mib'])}"
            cells = (named, took, _REACHED[reached])
        lines.append((target.work, target.before, _most(target), *cells))
    head = ("work", "the paper's code", "target", "fastest of those", "ours", "reached")
    explanation = (
        "What was set out to be reached; ours is captured on a GPU. The paper's code was timed "
        "earlier, on an H200, in no run of this record."
    )
    return [f"### Targets\n\n{explanation}\n\n{_table(head, lines)}"] if lines else []


def _most(target: targets.Target) -> str:
    if target.peers:
        return "less than torchsort, SoftTorch and LapSum"
    memory = "" if target.mib is None else f", {_memory(target.mib)}"
    return f"{_number(target.most)} ms{memory}"


def _time(row: Row) -> str:
    return f"{_number(row['ms_forward_backward'])} ms"


def _section(case: str, rows: Sequence[Row]) -> str:
    column = "ms_forward" if case in FORWARD_ONLY else "ms_forward_backward"
    measured = [("time", "eager", column), ("captured", "captured", column)]
    measured += [("memory", "eager", "extra_mib")]
    labels, lines = _labels(rows), []
    for kind in measured:
        for batch in sorted({row["batch"] or 0 for row in rows}, reverse=True):
            same = [row for row in rows if (row["batch"] or 0) == batch]
            shown = f"{batch}" if case in LEAGUE else ""
            lines += [[shown, *line] for line in _lines(*kind, same, labels)]
    head = ["batch", "n", "measured", *labels, "floor", "best peer ÷ ours"]
    payload = f", payload {rows[0]['variant']}" if case == "sort_by" else ""
    return f"### `{case}`{payload}\n\n{_table(head, lines)}\n{_accuracy(rows)}{_origin(rows)}\n"


def _lines(
    name: str, mode: str, column: str, rows: Sequence[Row], labels: Sequence[str]
) -> list[list[str]]:
    """Return a line for each size, and one that says how each engine grows."""
    here = [row for row in rows if row["mode"] == mode]
    if all(row[column] is None for row in here):
        return []
    lines = []
    for size in dict.fromkeys(_size(row) for row in here):
        of_size = {_label(row): row for row in here if _size(row) == size}
        line = [size, name, *(_cell(of_size.get(label), column) for label in labels)]
        lines.append([*line, *(_compare(of_size.values()) if name != "memory" else ("", ""))])
    fits = []
    for label in labels:
        points = [(row["n"], row[column]) for row in here if _label(row) == label and row[column]]
        fit = growth.exponent(points)
        fits.append("" if fit is None else f"{fit:.2f}")
    return [*lines, ["∝ n^", name, *fits, "", ""]] if any(fits) else lines


def _labels(rows: Sequence[Row]) -> list[str]:
    """Return the engines with their variants, ours first."""
    labels = dict.fromkeys(_label(row) for row in rows)
    return sorted(labels, key=lambda label: not label.startswith("ours"))


def _label(row: Row) -> str:
    return growth.label(row | {"mode": "eager"})


def _size(row: Row) -> str:
    return row["variant"] if row["case"] == "glimpse" else f"{row['n'] or 0:,}"


def _cell(row: Row | None, column: str) -> str:
    if row is None:
        return ""
    if row["case"] in LEAGUE and row["status"] == "skipped":
        return next((word for text, word in _WHY.items() if text in row["note"]), "slow")
    return row["status"] if row["status"] in ("failed", "wrong") else _number(row[column])


def _compare(rows: Collection[Row]) -> tuple[str, str]:
    """Return the floor of a size, and the time of the fastest peer over ours."""
    timed = [row for row in rows if row["ms_forward_backward"]]
    ours = [row for row in timed if _label(row) == "ours"]
    peers = [r for r in timed if r["engine"] not in (*OWN_ENGINES, NEIGHBOURS, HARD)]
    floor = next((_number(row["floor_ms"]) for row in rows if row["floor_ms"]), "")
    if not ours or not peers:
        return floor, ""
    best = min(row["ms_forward_backward"] for row in peers)
    return floor, _number(best / ours[0]["ms_forward_backward"])


def _accuracy(rows: Sequence[Row]) -> str:
    """Return the largest errors, and the median noise: half the distance of the quartiles."""
    parts, measured = [], [row for row in rows if row["error"] is not None]
    ours = [row["error"] for row in measured if row["engine"] == OURS]
    others = [row["error"] for row in measured if row["engine"] != OURS]
    worst = [f"{max(e):.0e} ({who})" for who, e in (("ours", ours), ("others", others)) if e]
    if worst:
        parts.append(f"Error at most {', '.join(worst)}. ")
    if noise := [row["noise"] for row in rows if row["noise"] is not None]:
        parts.append(f"Noise ± {50 * statistics.median(noise):.0f} %. ")
    return "".join(parts)
