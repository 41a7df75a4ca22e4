"""Results → one HTML file that needs nothing else."""

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from sparsewire_lab import __version__
from sparsewire_lab.files import write_whole
from sparsewire_lab.report import benchmarks, curves, glimpses, sections, sorting, wiring
from sparsewire_lab.report.entries import entries_of
from sparsewire_lab.report.load import RANKING, Results
from sparsewire_lab.report.markup import Html, data_script, element, join
from sparsewire_lab.report.missing import Missing, missing_parts
from sparsewire_lab.report.results import summary
from sparsewire_lab.train.record_checks import EXPERIMENTS

# In this order: each may use the ones before it.
_SCRIPTS = (
    *("base.js", "scales.js", "player.js", "chart.js", "pointer.js"),
    *("wiring.js", "glimpses.js", "sorting.js", "start.js"),
)
_LEAD = (
    "A sparse matrix is a list of indices and values, and indices are integers without a gradient. "
    "sparsewire keeps each connection as a point in a continuous index space, so that "
    "backpropagation moves the points to where the data needs a connection."
)
_INVITATION = {
    "identity": "Watch it: these wires learn to return random vectors. That the solution is the "
    "diagonal is not given.",
    "": "Watch it: these wires learn what a hidden matrix makes of random vectors. The places of "
    "its ones are not given.",
}


class Page(NamedTuple):
    """A page, and what it lacks."""

    html: str
    missing: list[Missing]
    notes: list[str]


def write_page(results: Results, path: Path, title: str) -> Page:
    """Write the page, whole or not at all; return it.

    Args:
        results: What the page shows.
        path: The HTML file.
        title: The title of the page.
    """
    page = build_page(results, title)
    write_whole(path, page.html.encode())
    return page


def build_page(results: Results, title: str) -> Page:
    """Return the page of results."""
    notes = list(results.notes)
    entries = {name: entries_of(name, results.of(name)) for name in EXPERIMENTS}
    viewers: dict[str, Any] = {
        "wiring": wiring.wirings(results.of("identity"), notes),
        "glimpses": glimpses.galleries(entries["attention"], notes),
        "sorting": sorting.strips(entries["sorting"], notes),
    }
    charts: dict[str, Any] = {name: curves.chart(name, entries[name]) for name in EXPERIMENTS}
    charts["growth"] = benchmarks.chart(results.bench)
    missing = missing_parts(results, viewers)
    tasks = [task for name in EXPERIMENTS for task in summary(name, entries[name])]
    shown = {"attention": "glimpses", "sorting": "sorting"}
    body = [
        sections.summary_section(tasks),
        *(
            sections.experiment_section(
                name, entries[name], bool(viewers.get(shown.get(name, ""))), bool(charts[name])
            )
            for name in EXPERIMENTS
        ),
        sections.ranking_section(results),
        sections.bench_section(results, bool(charts["growth"])),
        sections.origin_section(results),
        sections.missing_section(missing, notes),
    ]
    data = viewers | {f"chart-{name}": chart for name, chart in charts.items()}
    scripts = [data_script(name, value) for name, value in data.items() if value]
    html = _document(title, _header(title, body, viewers["wiring"]), body, scripts)
    return Page(html, missing, notes)


def asset(name: str) -> str:
    """Return the text of a file of the page's assets."""
    folder = resources.files("sparsewire_lab.report") / "assets"
    return (folder / name).read_text(encoding="utf-8")


def script() -> str:
    """Return the page's whole script, in a scope of its own."""
    body = "\n".join(asset(name) for name in _SCRIPTS)
    return f'(() => {{\n"use strict";\n{body}\n}})();'


def _header(title: str, body: Sequence[Html], wirings: Sequence[dict[str, Any]]) -> Html:
    names = {"results": "results", **{name: name for name in EXPERIMENTS}}
    names |= {
        RANKING: "label ranking",
        "speed": "speed",
        "origin": "machines",
        "missing": "missing",
    }
    names["attention"] = "glimpses"
    whole = join(body)
    links = (
        element("a", words, href=f"#{name}")
        for name, words in names.items()
        if f'<section id="{name}"' in whole
    )
    toggle = element("button", "dark", type="button", id="theme", class_="toggle")
    parts = [
        element("div", element("h1", title), toggle, class_="top"),
        element("p", _LEAD, class_="lead"),
    ]
    if wirings:
        parts += [
            element("p", _INVITATION.get(wirings[0]["target"], _INVITATION[""]), class_="watch"),
            sections.viewer_box("wiring", "wiring"),
            sections.wiring_words(),
        ]
    return element("header", *parts, element("nav", *links, aria_label="sections"))


def _document(title: str, header: Html, body: Sequence[Html], data: Sequence[Html]) -> str:
    code = script()
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    # Nothing is fetched, and no script runs but this one, whatever a record holds.
    policy = (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Html(asset("report.css"))),
    )
    skip = element("a", "skip to the results", href="#results", class_="skip")
    foot = element("footer", element("p", f"Made by sparsewire report, version {__version__}."))
    said = element("div", id="said", role="status", aria_live="polite")
    main = element("main", *body)
    page = element("body", skip, header, main, foot, said, *data, element("script", Html(code)))
    return f"<!doctype html>\n{element('html', head, page, lang='en')}\n"
