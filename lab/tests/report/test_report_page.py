"""Records → the page: what is on it, that text cannot break out, and that it stays small."""

import base64
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from lab.tests.figures.samples import fill, for_report, save_wiring, write, write_bench
from PIL import Image

from sparsewire_lab.report.load import load
from sparsewire_lab.report.markup import data_script, element
from sparsewire_lab.report.page import build_page, script
from sparsewire_lab.report.viewers import packed, picture

ROOT = Path(__file__).resolve().parents[3]
HOSTILE = "\"'><script>alert(1)</script><!--<img src=x onerror=alert(2)>\u2028&amp;{}`${1}"


class Tags(HTMLParser):
    """All tags of a page, and the text of its blocks of data."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.data: dict[str, str] = {}
        self._inside: str | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        self._inside = (found.get("id") or "") if tag == "script" else None

    def handle_endtag(self, tag: str) -> None:
        self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.data[self._inside] = self.data.get(self._inside, "") + data

    def ids(self) -> list[str]:
        return [found["id"] or "" for _, found in self.tags if "id" in found]


def test_the_page_has_all_sections_and_viewers(tmp_path: Path) -> None:
    found = load([fill(tmp_path)], write_bench(tmp_path / "results.csv"))
    page = build_page(found, "A title")
    tags = Tags(page.html)
    sections = [a["id"] for tag, a in tags.tags if tag == "section"]
    assert sections == ["results", "identity", "attention", "sorting", "speed", "origin"]
    viewers = [a["data-from"] for _, a in tags.tags if "data-viewer" in a]
    assert viewers == [
        *("wiring", "chart-identity", "glimpses", "chart-attention"),
        *("sorting", "chart-sorting", "chart-growth"),
    ]
    for name in viewers:
        assert json.loads(tags.data[f"data-{name}"])
    assert len(tags.ids()) == len(set(tags.ids()))
    assert "<title>A title</title>" in page.html
    assert (page.missing, page.notes) == ([], [])


def test_numbers_stand_beside_what_made_them(tmp_path: Path) -> None:
    page = build_page(load([fill(tmp_path)]), "")
    assert "0.3\u00a0±\u00a00.071" in page.html  # of 0.25 and 0.35
    assert "30.00\u00a0±\u00a07.07 %" in page.html
    buttons = [a for tag, a in Tags(page.html).tags if tag == "button" and "data-command" in a]
    assert {a["data-command"] for a in buttons} >= {
        f"sparsewire {name} --seeds 0 1" for name in ("identity", "attention", "sorting")
    }
    assert all(a["aria-label"] for a in buttons)


def test_missing_experiments_are_named_at_the_end(tmp_path: Path) -> None:
    page = build_page(load([write(tmp_path / "x.jsonl", for_report("identity"))]), "")
    ids = Tags(page.html).ids()
    assert {"identity", "missing"} <= set(ids)
    assert not {"attention", "sorting", "speed"} & set(ids)
    assert "data-glimpses" not in ids
    assert "sparsewire attention --data digits" in page.html


def test_nothing_is_fetched(tmp_path: Path) -> None:
    page = build_page(load([fill(tmp_path)], write_bench(tmp_path / "results.csv")), "").html
    for _, found in Tags(page).tags:
        for name in ("src", "href", "srcset", "action"):
            assert (found.get(name) or "#").startswith(("data:", "#"))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert "default-src &#x27;none&#x27;" in policy[1]
    assert "url(" not in (ROOT / "lab/src/sparsewire_lab/report/assets/report.css").read_text()


def test_text_of_records_cannot_break_out(tmp_path: Path) -> None:
    words = dict.fromkeys(("command", "device", "commit", "date"), HOSTILE)
    more = words | {"versions": {"torch": HOSTILE}}
    save_wiring(tmp_path / "w.npz", sizes=(8, 8))
    write(
        tmp_path / "x.jsonl",
        for_report("identity", wiring="w.npz") | more,
        for_report("attention") | more,
        for_report("sorting") | more,
        for_report("identity") | {"experiment": HOSTILE, "key": "d"},
        for_report("identity", method=HOSTILE, target=HOSTILE, values=HOSTILE),
    )
    page = build_page(load([tmp_path]), HOSTILE)
    tags = Tags(page.html)
    scripts = [a for tag, a in tags.tags if tag == "script"]
    assert [a.get("type") for a in scripts[:-1]] == ["application/json"] * (len(scripts) - 1)
    assert page.html.count("<script") == len(scripts)
    assert page.html.count("</script>") == len(scripts)
    assert not any(name.startswith("on") for _, a in tags.tags for name in a)
    assert all(tag != "img" for tag, _ in tags.tags)
    assert "<!--" not in page.html.removeprefix("<!doctype")
    assert "\u2028" not in "".join(tags.data.values())
    assert len(page.notes) == 2
    (wires,) = json.loads(tags.data["data-wiring"])
    assert wires["command"] == HOSTILE
    commands = [a["data-command"] for _, a in tags.tags if "data-command" in a]
    assert HOSTILE in commands


def test_elements_escape_text_and_attributes() -> None:
    assert element("a", "<&>", title='"x"') == '<a title="&quot;x&quot;">&lt;&amp;&gt;</a>'
    assert element("b", element("i", "<")) == "<b><i>&lt;</i></b>"
    assert element("input", disabled=True, hidden=None) == "<input disabled>"
    text = data_script("x", {"a": "</script>\u2028&"})
    assert json.loads(re.sub(r"<[^>]*>", "", text)) == {"a": "</script>\u2028&"}


def test_pictures_are_whole() -> None:
    image = np.arange(15, dtype=np.uint8).reshape(3, 5) * 17
    for given, shown in (
        (image, image),
        (np.array([[0.0, 1.0], [-1.0, np.nan]]), np.array([[0, 255], [0, 0]])),
    ):
        start, _, data = picture(given).partition(",")
        assert start == "data:image/png;base64"
        with Image.open(io.BytesIO(base64.b64decode(data))) as opened:
            np.testing.assert_array_equal(np.asarray(opened), shown)


def test_numbers_are_packed_and_refused_if_they_do_not_fit() -> None:
    found = packed(np.array([[1, 2], [3, 258]]), "u2")
    assert found["shape"] == [2, 2]
    assert np.frombuffer(base64.b64decode(found["data"]), "<u2").tolist() == [1, 2, 3, 258]
    for bad in ([256], [-1]):
        with pytest.raises(ValueError, match="must fit u1"):
            packed(np.array(bad), "u1")


def test_the_published_results_make_a_small_page() -> None:
    found = load([ROOT / "results"], ROOT / "results" / "bench.csv")
    page = build_page(found, "")
    assert len(page.html.encode()) < 3_000_000
    assert page.notes == []
    assert "0.79\u00a0±\u00a00.04 %" in page.html
    assert '<section id="label-ranking"' in page.html
    assert "one hidden layer, 21 data sets" in page.html


def test_the_script_uses_no_markup_of_strings() -> None:
    """Text enters the page as text: nothing parses it."""
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert word not in script()
