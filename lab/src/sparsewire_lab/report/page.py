"""What was gathered → one HTML file that needs nothing else."""

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from sparsewire._version import __version__
from sparsewire_lab.files import write_whole
from sparsewire_lab.report import benchmarks, curves, glimpses, sections, sorting, wiring
from sparsewire_lab.report.absent import Absent, absences
from sparsewire_lab.report.gather import EXPERIMENTS, Found
from sparsewire_lab.report.lines import lines_of
from sparsewire_lab.report.markup import Html, data_script, element, join
from sparsewire_lab.report.results import summary

TITLE = "sparsewire: learned wiring"
# In this order: each may use what stands before it.
_SCRIPTS = (
    *("base.js", "scales.js", "player.js", "chart.js", "pointer.js"),
    *("wiring.js", "glimpses.js", "sorting.js", "start.js"),
)
_LEAD = (
    "A sparse matrix is a list of places and values, and places are integers without a gradient. "
    "sparsewire keeps each connection as a point in a continuous index space, so that plain "
    "backpropagation moves the points until they sit where the data wants a wire."
)
_WATCH = {
    "identity": "Watch it: these wires see random vectors and are asked to return them. Nobody "
    "tells them that the answer is the diagonal.",
    "": "Watch it: these wires see random vectors and what a hidden matrix makes of them. Nobody "
    "tells them where its ones are.",
}


class Page(NamedTuple):
    """A page, and what is not on it."""

    html: str
    absent: list[Absent]
    notes: list[str]


def write_page(found: Found, path: Path, title: str = TITLE) -> Page:
    """Write the page, whole or not at all; return it.

    Args:
        found: What was gathered.
        path: The HTML file.
        title: What stands at its top.
    """
    page = build_page(found, title)
    write_whole(path, page.html.encode())
    return page


def build_page(found: Found, title: str = TITLE) -> Page:
    """Return the page of what was gathered."""
    notes = list(found.notes)
    lines = {name: lines_of(name, found.of(name)) for name in EXPERIMENTS}
    viewers: dict[str, Any] = {
        "wiring": wiring.viewer(found.of("identity"), notes),
        "glimpses": glimpses.gallery(lines["attention"], notes),
        "sorting": sorting.strips(lines["sorting"], notes),
    }
    charts: dict[str, Any] = {name: curves.chart(name, lines[name]) for name in EXPERIMENTS}
    charts["growth"] = benchmarks.chart(found.bench)
    absent = absences(found, viewers)
    tasks = [task for name in EXPERIMENTS for task in summary(name, lines[name])]
    shown = {"attention": "glimpses", "sorting": "sorting"}
    body = [
        sections.summary_section(tasks),
        *(
            sections.experiment_section(
                name, lines[name], bool(viewers.get(shown.get(name, ""))), bool(charts[name])
            )
            for name in EXPERIMENTS
        ),
        sections.bench_section(found, bool(charts["growth"])),
        sections.origin_section(found),
        sections.absent_section(absent, notes),
    ]
    data = viewers | {f"chart-{name}": chart for name, chart in charts.items()}
    scripts = [data_script(name, value) for name, value in data.items() if value]
    html = _document(title, _header(title, body, viewers["wiring"]), body, scripts)
    return Page(html, absent, notes)


def asset(name: str) -> str:
    """Return the text of a file that the page is made of."""
    folder = resources.files("sparsewire_lab.report") / "assets"
    return (folder / name).read_text(encoding="utf-8")


def script() -> str:
    """Return the page's whole script; nothing of it is seen from outside."""
    body = "\n".join(asset(name) for name in _SCRIPTS)
    return f'(() => {{\n"use strict";\n{body}\n}})();'


def _header(title: str, body: Sequence[Html], wirings: Sequence[dict[str, Any]]) -> Html:
    names = {"results": "results", **{name: name for name in EXPERIMENTS}}
    names |= {"speed": "speed", "origin": "machines", "absent": "not here"}
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
            element("p", _WATCH.get(wirings[0]["target"], _WATCH[""]), class_="watch"),
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
    page = element(
        "body",
        skip,
        header,
        element("main", *body),
        foot,
        said,
        *data,
        element("script", Html(code)),
    )
    return f"<!doctype html>\n{element('html', head, page, lang='en')}\n"
