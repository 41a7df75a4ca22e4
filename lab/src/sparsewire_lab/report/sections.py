"""The sections of the page: each from plain data to HTML, empty if there is nothing to show."""

from collections.abc import Sequence
from typing import Any

from sparsewire_lab.label_ranking.metrics import mean_ranks
from sparsewire_lab.label_ranking.table import MODELS, results_of
from sparsewire_lab.report import benchmarks, origin
from sparsewire_lab.report.entries import Entry
from sparsewire_lab.report.load import RANKING, Results
from sparsewire_lab.report.markup import Html, copy_button, element, more, scrolled, table
from sparsewire_lab.report.missing import Missing
from sparsewire_lab.report.results import Number, Task, full_head, full_row

TITLES = {
    "identity": "Identity matrices",
    "attention": "Glimpses",
    "sorting": "Sorting",
}
_WORDS = {
    "identity": "A layer of n wires learns to return random vectors. It is given neither the "
    "connections nor that the solution is a diagonal. The error is the mean squared error of the "
    "layer with every wire rounded to its nearest index: 0 means that all wires are on the "
    "diagonal.",
    "attention": "A network chooses, for each image, which pixels a classifier is given. One digit "
    "is hidden among pieces of others, and its position is not given. The error is the share of "
    "test digits that are classified wrongly.",
    "sorting": "A network reads numbers written in digits and gives each a key; it learns from the "
    "right order alone. The error is the share of sets that its keys do not put in order.",
}
_VIEWER_WORDS = {
    "wiring": "Left, the index space: each dot is a wire (its column is the input it reads, its "
    "row the output it feeds), the disc around it one standard deviation, the grey diamonds the "
    "integer tuples sampled in one pass. Right, the matrix they represent: as in one pass of "
    "training, or with every wire at its nearest index, by which the error is measured. "
    "Arrow keys move the slider, space plays.",
    "glimpses": "The outline is the box that the network chose for an image; hover, focus or tap "
    "an image to see the pixels that were read (where boxes are small, enlarged). Next to it is "
    "the glimpse: all that the classifier sees. The slider moves through training. Mistakes come "
    "last and are marked; their boxes are those of the trained model.",
    "sorting": "Quicksort halves the set level by level. Each picture moves to the place that its "
    "key gives it; where keys leave the order uncertain, pictures blend. Below it, keys against "
    "the true values: a rising line sorts everything.",
}
_SUMMARY_HEAD = ("task", "sparsewire", "paper", "baselines")
_UNITS = {
    "identity": "mean squared error of rounded wires, 0 is perfect",
    "attention": "% of test digits classified wrongly",
    "sorting": "% of sets not in order",
}
_GROWTH_WORDS = "∝ n^e is the growth of the time over the largest sizes. "
_CHART_WORDS = (
    "Hover for values, drag or turn the wheel to zoom, double-click to reset. With the keyboard: "
    "focus the plot, arrow keys walk along the points, + and − zoom, 0 resets."
)


def summary_section(tasks: Sequence[Task]) -> Html:
    """Return the table ours / paper / baselines, with the command of every number."""
    if not tasks:
        return Html("")
    words = (
        "Errors at the end of training, mean ± standard deviation over seeds; less is better. "
        "Each number has the command that made it."
    )
    return section("results", "Results", element("p", words), _summary_table(tasks))


def experiment_section(name: str, entries: Sequence[Entry], viewer: bool, chart: bool) -> Html:
    """Return the section of an experiment: its viewer, curves and the table of all settings."""
    if not entries:
        return Html("")
    parts: list[Html] = [element("p", _WORDS[name])]
    if viewer:
        kind = "glimpses" if name == "attention" else name
        parts += [element("p", _VIEWER_WORDS[kind], class_="hint"), viewer_box(kind, kind)]
    if chart:
        parts += [
            element("h3", "Curves"),
            element("p", _CHART_WORDS, class_="hint"),
            viewer_box("chart", f"chart-{name}", f"curves of {TITLES[name]}"),
        ]
    parts.append(more(f"All settings ({len(entries)})", _full_table(name, entries)))
    return section(name, TITLES[name], *parts)


def ranking_section(results: Results) -> Html:
    """Return the mean ranks of losses over the data sets of label ranking, for each model."""
    by_model = {title: results_of(results.of(RANKING), model) for model, title in MODELS.items()}
    by_model = {title: found for title, found in by_model.items() if found.table}
    if not by_model:
        return Html("")
    rows: dict[str, list[str]] = {}
    for at, found in enumerate(by_model.values()):
        for name, rank in zip(found.titles(), mean_ranks(found.table), strict=True):
            rows.setdefault(name, ["–"] * len(by_model))[at] = f"{rank:.2f}"
    parts: list[Html] = [
        element(
            "p",
            "A model ranks the labels of an instance; methods differ in the loss alone. Mean rank "
            "of each method over the data sets, by Kendall's coefficient in ten-fold "
            "cross-validation; 1 would be the best on all of them. ",
            copy_button("sparsewire label-ranking", "label ranking"),
        )
    ]
    sets = (f"{title}, {len(found.data_sets)} data sets" for title, found in by_model.items())
    written = table(["loss", *sets], [[name, *cells] for name, cells in rows.items()], "Mean ranks")
    return section(RANKING, "Label ranking", *parts, written)


def bench_section(results: Results, chart: bool) -> Html:
    """Return the benchmarks: how time and memory grow, and the table of every case."""
    if not results.bench:
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
            " is the peak of a pass above what is allocated before it. ",
            copy_button("sparsewire bench", "the benchmarks"),
        )
    ]
    if chart:
        parts += [
            element("p", _GROWTH_WORDS + _CHART_WORDS, class_="hint"),
            viewer_box("chart", "chart-growth", "time and memory against the size"),
        ]
    for device, case, rows in benchmarks.cases(results.bench):
        title = f"{benchmarks.TITLES.get(case, case)} – {device}"
        written = table(benchmarks.HEAD, map(benchmarks.cells, rows), title)
        parts.append(more(title, written))
    return section("speed", "Speed and memory", *parts)


def origin_section(results: Results) -> Html:
    """Return the machines, versions, commits and dates behind the numbers."""
    if not (rows := origin.origins(results)):
        return Html("")
    words = element("p", "The machines and versions behind the numbers.")
    caption = "Devices, versions, commits, dates"
    return section("origin", "Machines and versions", words, table(origin.HEAD, rows, caption))


def missing_section(missing: Sequence[Missing], notes: Sequence[str]) -> Html:
    """Return what is not on the page, with commands, and what was left out, with reasons."""
    if not missing and not notes:
        return Html("")
    parts: list[Html] = []
    if missing:
        items = []
        for what, command in missing:
            button = copy_button(command, what)
            items.append(element("li", f"{what}: ", element("code", command), " ", button))
        parts.append(element("ul", *items))
    if notes:
        parts.append(element("p", "Left out, because it could not be read:"))
        parts.append(element("ul", *(element("li", note) for note in notes)))
    return section("missing", "Not on this page", *parts)


def section(name: str, title: str, *children: object) -> Html:
    """Return a section with a heading that can be linked to."""
    heading = element("h2", title, id=f"{name}-title")
    return element("section", heading, *children, id=name, aria_labelledby=f"{name}-title")


def viewer_box(kind: str, data: str, words: str | None = None) -> Html:
    """Return the box of a viewer, which the script fills."""
    without = element("noscript", element("p", "This picture needs JavaScript."))
    box: dict[str, Any] = {"data_words": words, "data_viewer": kind, "data_from": data}
    return element("div", without, class_="viewer", **box)


def wiring_words() -> Html:
    """Return what the wiring viewer shows."""
    return element("p", _VIEWER_WORDS["wiring"], class_="hint")


def _summary_table(tasks: Sequence[Task]) -> Html:
    """Return the rows of each experiment below its name; on a phone every row becomes a card."""
    head = element("tr", *(element("th", words, scope="col") for words in _SUMMARY_HEAD))
    bodies = []
    for name in dict.fromkeys(task.experiment for task in tasks):
        title = element("a", TITLES[name], href=f"#{name}")
        unit = element("span", f" – {_UNITS[name]}", class_="name")
        rows = [element("tr", element("th", title, unit, colspan=4, scope="rowgroup"))]
        rows += [_summary_row(task) for task in tasks if task.experiment == name]
        bodies.append(element("tbody", *rows))
    inner = element("table", element("thead", head), *bodies, class_="summary")
    return scrolled(inner, "Errors of all experiments")


def _summary_row(task: Task) -> Html:
    name = element("th", task.name, scope="row")
    ours = _numbers(task, task.ours)
    if not task.paper and not task.baselines:
        return element("tr", name, element("td", ours, colspan=3, data_label=_SUMMARY_HEAD[1]))
    paper = element("ul", *(element("li", words) for words in task.paper), class_="entries")
    cells = ours, paper if task.paper else Html("–"), _numbers(task, task.baselines)
    written = (
        element("td", cell, data_label=label, class_="none" if cell == "–" else None)
        for label, cell in zip(_SUMMARY_HEAD[1:], cells, strict=True)
    )
    return element("tr", name, *written)


def _numbers(task: Task, numbers: Sequence[Number]) -> Html:
    if not numbers:
        return Html("–")
    return element("ul", *(_number(task, item) for item in numbers), class_="entries")


def _number(task: Task, item: Number) -> Html:
    text = element("strong", item.text.replace(" ± ", "\u00a0±\u00a0"))
    name = element("span", f"{item.name}, {item.seeds}", class_="name")
    return element(
        "li", text, " ", name, " ", copy_button(item.command, f"{task.name}, {item.name}")
    )


def _full_table(name: str, entries: Sequence[Entry]) -> Html:
    """Return the table of all settings, with commands near the left, where they are visible."""
    head, rows = list(full_head(name)), []
    head.insert(2, "command")
    for entry in entries:
        row: list[object] = list(full_row(name, entry))
        row.insert(2, copy_button(entry.command, entry.label))
        rows.append(row)
    return table(head, rows, f"{TITLES[name]}: all settings")
