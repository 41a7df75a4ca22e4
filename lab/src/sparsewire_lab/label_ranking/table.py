"""The tables of the label-ranking page, from its records."""

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import NamedTuple

from sparsewire_lab.figures.tables import fill_marked, markdown
from sparsewire_lab.label_ranking.methods import METHODS, Name
from sparsewire_lab.label_ranking.metrics import friedman, mean_ranks, wilcoxon_holm
from sparsewire_lab.train.records import Record

MODELS = {"linear": "linear model", "mlp": "one hidden layer"}
_LEVEL = 0.05


class Results(NamedTuple):
    """The coefficients of one model: a row for each data set, a column for each method."""

    data_sets: list[str]
    methods: list[Name]
    table: list[list[float]]

    def titles(self) -> list[str]:
        """Return the names of the methods for people."""
        return [METHODS[name].title for name in self.methods]


def results_of(runs: Iterable[Record], model: str, metric: str = "kendall") -> Results:
    """Return means over seeds, of the data sets that all recorded methods of a model have."""
    found: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        given = run["arguments"]
        if given["model"] == model:
            found.setdefault((given["data_set"], given["method"]), []).append(run["final"][metric])
    methods: list[Name] = [name for name in METHODS if any(method == name for _, method in found)]
    data_sets = sorted({data_set for data_set, _ in found})
    whole = [each for each in data_sets if all((each, name) in found for name in methods)]
    table = [[fmean(found[each, name]) for name in methods] for each in whole]
    return Results(whole, methods, table)


def fill_label_ranking(page: str, runs: Sequence[Record]) -> str:
    """Return a page with the tables of the records between its marks."""
    tables = {}
    for model in MODELS:
        tables[f"{model} table"] = coefficients_table(results_of(runs, model))
        tables[f"{model} tests"] = tests_table(results_of(runs, model))
    return fill_marked(page, tables)


def coefficients_table(results: Results) -> str:
    """Return Kendall's coefficients, the best of each data set in bold, and mean ranks."""
    if not results.table:
        return "No run is recorded yet.\n"
    rows = [
        [name, *_bold(numbers, max(numbers), 3)]
        for name, numbers in zip(results.data_sets, results.table, strict=True)
    ]
    means = [fmean(column) for column in zip(*results.table, strict=True)]
    ranks = mean_ranks(results.table)
    rows.append(["*mean*", *_bold(means, max(means), 3)])
    rows.append(["*mean rank*", *_bold(ranks, min(ranks), 2)])
    return markdown(["data set", *results.titles()], rows)


def tests_table(results: Results) -> str:
    """Return Friedman's test, and each of our methods against each other method."""
    if len(results.data_sets) < 2 or len(results.methods) < 3:
        return "Too few runs are recorded for a test.\n"
    test, ranks = friedman(results.table), mean_ranks(results.table)
    best = results.titles()[ranks.index(min(ranks))]
    said = (
        f"Friedman's test: p = {_p(test.p)}; Nemenyi's critical difference of two mean ranks is "
        f"{test.critical:.2f} ({len(results.methods)} methods, {len(results.data_sets)} data "
        f"sets). The best mean rank is that of *{best}*, {min(ranks):.2f}.\n\n"
    )
    ours: list[Name] = [name for name in results.methods if METHODS[name].title.startswith("ours")]
    columns = {name: wilcoxon_holm(results.table, results.methods.index(name)) for name in ours}
    rows = []
    for place, name in enumerate(results.methods):
        if name in ours:
            continue
        cells = []
        for mine in ours:
            at = results.methods.index(mine)
            wins = sum(row[at] > row[place] for row in results.table)
            losses = sum(row[at] < row[place] for row in results.table)
            p = columns[mine][place]
            text = f"{wins} : {losses}, p = {_p(p)}"
            cells.append(f"**{text}**" if p < _LEVEL else text)
        rows.append([METHODS[name].title, *cells])
    return said + markdown(["against", *(METHODS[name].title for name in ours)], rows)


def _bold(numbers: Sequence[float], best: float, digits: int) -> list[str]:
    texts = [f"{number:.{digits}f}" for number in numbers]
    return [f"**{t}**" if t == f"{best:.{digits}f}" else t for t in texts]


def _p(p: float) -> str:
    return f"{p:.1e}" if p < 0.001 else f"{p:.3f}"
