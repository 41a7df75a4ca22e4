"""The sections of the page: each from plain data to HTML, empty if there is nothing to show."""

from collections.abc import Sequence
from typing import Any

from sparsewire_lab.report import benchmarks, origin
from sparsewire_lab.report.absent import Absent
from sparsewire_lab.report.gather import Found
from sparsewire_lab.report.lines import Line
from sparsewire_lab.report.markup import Html, copy_button, element, more, table
from sparsewire_lab.report.results import Entry, Task, full_head, full_row

TITLES = {
    "identity": "Identity matrices",
    "attention": "Glimpses",
    "sorting": "Sorting",
}
_WORDS = {
    "identity": "A layer of n wires sees random vectors and is asked to return them. It is told "
    "neither where to connect nor that the answer is a diagonal. The error is the mean squared "
    "error of the layer with every wire rounded to its nearest place: 0 means that all wires are "
    "where they belong.",
    "attention": "A network chooses, for each image, which pixels a classifier is given. One digit "
    "is hidden among pieces of others; nobody says where. The error is the share of test digits "
    "that are classified wrongly.",
    "sorting": "A network reads numbers written in digits and gives each a key; it learns from the "
    "right order alone. The error is the share of sets that its keys do not put in order.",
}
_VIEWER_WORDS = {
    "wiring": "Left, the index space: each dot is a wire (its column is the input it reads, its "
    "row the output it feeds), the disc around it one standard deviation, the grey diamonds the "
    "integer places drawn in one pass. Right, the matrix they stand for: as in one pass of "
    "training, or with every wire at its nearest place, by which the error is measured. "
    "Arrow keys move the slider, space plays.",
    "glimpses": "The outline is the box that the network chose for an image; hover, focus or tap "
    "an image to see the places that were read (where boxes are small, enlarged). Beside it is "
    "the glimpse: all that the classifier sees. The slider moves through training. Mistakes stand "
    "last and say so; their boxes are those of the finished model.",
    "sorting": "Quicksort halves the set level by level. Each picture moves to where its key says; "
    "where keys leave the order in doubt, pictures blend. Below it, keys against the true values: "
    "a rising line sorts everything.",
}
_SUMMARY_HEAD = ("task", "sparsewire", "paper", "baselines")
_UNITS = {
    "identity": "mean squared error of rounded wires, 0 is perfect",
    "attention": "% of test digits classified wrongly",
    "sorting": "% of sets not in order",
}
_GROWTH_WORDS = "∝ n^e says how the time grows over the largest sizes. "
_CHART_WORDS = (
    "Hover for values, drag or turn the wheel to zoom, double-click to reset. With the keyboard: "
    "focus the plot, arrow keys walk along the points, + and − zoom, 0 resets."
)


def summary_section(tasks: Sequence[Task]) -> Html:
    """Return the table ours / paper / baselines, with the command of every number."""
    if not tasks:
        return Html("")
    return section(
        "results",
        "Results",
        element(
            "p",
            "Errors at the end of training, mean ± standard deviation over seeds; less is better. "
            "Each number has the command that made it.",
        ),
        _summary_table(tasks),
    )


def experiment_section(name: str, lines: Sequence[Line], viewer: bool, chart: bool) -> Html:
    """Return the section of an experiment: its viewer, curves and the table of all settings."""
    if not lines:
        return Html("")
    parts: list[Html] = [element("p", _WORDS[name])]
    if viewer:
        kind = "glimpses" if name == "attention" else name
        parts += [element("p", _VIEWER_WORDS[kind], class_="hint"), viewer_box(kind, kind)]
    if chart:
        parts += [
            element("h3", "Curves"),
            element("p", _CHART_WORDS, class_="hint"),
            chart_box(name, f"curves of {TITLES[name]}"),
        ]
    parts.append(more(f"All settings ({len(lines)})", _full_table(name, lines)))
    return section(name, TITLES[name], *parts)


def bench_section(found: Found, chart: bool) -> Html:
    """Return the benchmarks: how time and memory grow, and the table of every case."""
    if not found.bench:
        return Html("")
    parts: list[Html] = [
        element(
            "p",
            "Medians after a warm-up, measured by ",
            element("code", "sparsewire bench"),
            "; ",
            element("em", "captured"),
            " is the replay of a CUDA graph. ",
            element("em", "Extra memory"),
            " is the peak of a pass above what is held before it. ",
            copy_button("sparsewire bench", "the benchmarks"),
        )
    ]
    if chart:
        parts += [
            element("p", _GROWTH_WORDS + _CHART_WORDS, class_="hint"),
            chart_box("growth", "time and memory against the size"),
        ]
    for device, case, rows in benchmarks.cases(found.bench):
        title = f"{benchmarks.TITLES.get(case, case)} – {device}"
        written = table(benchmarks.HEAD, map(benchmarks.cells, rows), title)
        parts.append(more(title, written))
    return section("speed", "Speed and memory", *parts)


def origin_section(found: Found) -> Html:
    """Return the machines, versions, commits and dates behind the numbers."""
    rows = origin.origins(found)
    if not rows:
        return Html("")
    words = "The machines and versions behind the numbers."
    caption = "Devices, versions, commits, dates"
    return section(
        "origin",
        "Machines and versions",
        element("p", words),
        table(origin.HEAD, rows, caption),
    )


def absent_section(absent: Sequence[Absent], notes: Sequence[str]) -> Html:
    """Return what is not on the page, with commands, and what was left out, with reasons."""
    if not absent and not notes:
        return Html("")
    parts: list[Html] = []
    if absent:
        items = (
            element(
                "li",
                f"{item.what}: ",
                element("code", item.command),
                " ",
                copy_button(item.command, item.what),
            )
            for item in absent
        )
        parts.append(element("ul", *items))
    if notes:
        parts.append(element("p", "Left out, because it could not be read:"))
        parts.append(element("ul", *(element("li", note) for note in notes)))
    return section("absent", "Not on this page", *parts)


def section(name: str, title: str, *children: object) -> Html:
    """Return a section with a heading that can be linked to."""
    heading = element("h2", title, id=f"{name}-title")
    return element("section", heading, *children, id=name, aria_labelledby=f"{name}-title")


def viewer_box(kind: str, data: str) -> Html:
    """Return the place of a viewer, which the script fills."""
    without = element("noscript", element("p", "This picture moves with JavaScript only."))
    return element("div", without, class_="viewer", data_viewer=kind, data_from=data)


def wiring_words() -> Html:
    """Return what the wiring viewer shows."""
    return element("p", _VIEWER_WORDS["wiring"], class_="hint")


def chart_box(data: str, words: str) -> Html:
    """Return the place of a chart, which the script fills."""
    without = element("noscript", element("p", "Curves are drawn with JavaScript only."))
    box: dict[str, Any] = {"data_viewer": "chart", "data_from": f"chart-{data}"}
    return element("div", without, class_="viewer", data_words=words, **box)


def _summary_table(tasks: Sequence[Task]) -> Html:
    """The rows of each experiment below its name; on a phone every row becomes a card."""
    head = element("tr", *(element("th", words, scope="col") for words in _SUMMARY_HEAD))
    bodies = []
    for name in dict.fromkeys(task.experiment for task in tasks):
        title = element("a", TITLES[name], href=f"#{name}")
        unit = element("span", f" – {_UNITS[name]}", class_="name")
        rows = [element("tr", element("th", title, unit, colspan=4, scope="rowgroup"))]
        rows += [_summary_row(task) for task in tasks if task.experiment == name]
        bodies.append(element("tbody", *rows))
    inner = element("table", element("thead", head), *bodies, class_="summary")
    words = "Errors of all experiments"
    return element("div", inner, class_="scroll", tabindex=0, role="region", aria_label=words)


def _summary_row(task: Task) -> Html:
    name = element("th", task.name, scope="row")
    ours = _entries(task, task.ours)
    if not task.paper and not task.baselines:
        return element("tr", name, element("td", ours, colspan=3, data_label=_SUMMARY_HEAD[1]))
    said = element("ul", *(element("li", words) for words in task.paper), class_="entries")
    cells = ours, said if task.paper else Html("–"), _entries(task, task.baselines)
    written = (
        element("td", cell, data_label=label, class_="none" if cell == "–" else None)
        for label, cell in zip(_SUMMARY_HEAD[1:], cells, strict=True)
    )
    return element("tr", name, *written)


def _entries(task: Task, entries: Sequence[Entry]) -> Html:
    if not entries:
        return Html("–")
    return element("ul", *(_entry(task, item) for item in entries), class_="entries")


def _entry(task: Task, item: Entry) -> Html:
    return element(
        "li",
        element("strong", item.number.replace(" ± ", "\u00a0±\u00a0")),
        " ",
        element("span", f"{item.name}, {item.seeds}", class_="name"),
        " ",
        copy_button(item.command, f"{task.name}, {item.name}"),
    )


def _full_table(name: str, lines: Sequence[Line]) -> Html:
    """The commands stand near the left, where they are seen without scrolling."""
    head, rows = list(full_head(name)), []
    head.insert(2, "command")
    for line in lines:
        row: list[object] = list(full_row(name, line))
        row.insert(2, copy_button(line.command, line.label))
        rows.append(row)
    return table(head, rows, f"{TITLES[name]}: all settings")
