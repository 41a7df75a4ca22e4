"""The report in a real Chromium: everything that moves, at the widths of a phone and a desk."""

from pathlib import Path

import pytest
from lab.tests.browser.devtools import Page
from lab.tests.figures.samples import fill, for_report, write, write_bench
from lab.tests.report.test_report_page import HOSTILE

from sparsewire_lab.report.load import load
from sparsewire_lab.report.page import write_page

pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parents[3]
PHONE, DESK = 390, 1280
CHART = '[data-from="chart-identity"]'
WIRES = '[data-viewer="wiring"]'
# Still pages first: those who wish for less motion are not shown any unasked.
STILL = {"prefers_reduced_motion": "reduce"}
# Text whose contrast is below 4.5, by the formula of WCAG.
POOR = """(() => {
  const part = (c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const light = (rgb) => 0.2126 * part(rgb[0]) + 0.7152 * part(rgb[1]) + 0.0722 * part(rgb[2]);
  const read = (text) => text.match(/[\\d.]+/g).map(Number);
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const found = read(getComputedStyle(at).backgroundColor);
      if (found.length === 3 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const node of document.querySelectorAll('body *')) {
    const own = [...node.childNodes].some((c) => c.nodeType === 3 && c.data.trim());
    if (!own || node.disabled || !node.getClientRects().length) continue;
    const style = getComputedStyle(node);
    const ink = light(read(node.ownerSVGElement ? style.fill : style.color));
    const ground = light(behind(node));
    const ratio = (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
    if (ratio < 4.5) poor.push([node.tagName, node.textContent.slice(0, 30), ratio]);
  }
  return poor;
})()"""

both_widths = pytest.mark.parametrize("width", [PHONE, DESK])


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    bench = write_bench(folder / "results.csv")
    write_page(load([fill(folder / "runs")], bench), folder / "report.html", "A title")
    return folder / "report.html"


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("published") / "report.html"
    write_page(load([ROOT / "results"], ROOT / "results" / "bench.csv"), path, "A title")
    return path


def lines(page: Page) -> int:
    return page.count(f"{CHART} .line")


def first_line(page: Page) -> str:
    return page.get(f"{CHART} .line", "getAttribute('d')")


def drawn(page: Page, canvas: str) -> str:
    return page.get(canvas, "toDataURL()")


def texts(page: Page, selector: str) -> list[str]:
    return page.run(f"[...document.querySelectorAll('{selector}')].map((it) => it.textContent)")


@both_widths
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_the_window_and_its_text_has_contrast(
    page: Page, report: Path, width: int, scheme: str
) -> None:
    page.open(report, width, prefers_color_scheme=scheme, **STILL)
    assert page.run(POOR) == []
    page.run("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    assert page.run("document.documentElement.scrollWidth") <= width
    wide = "[...document.querySelectorAll('canvas, svg.plot')].map((c) => c.clientWidth)"
    assert min(page.run(wide)) > 100


def test_the_published_results_fit_too(page: Page, published: Path) -> None:
    """Digits stand below each other on a phone: a row of three digits is three digits high."""
    strip, shapes = '[data-viewer="sorting"] .wide canvas', {}
    for width in (DESK, PHONE):
        page.open(published, width, **STILL)
        assert page.run("document.documentElement.scrollWidth") <= width
        assert page.count(".viewer") >= 4
        table = "#results .scroll"
        assert page.get(table, "scrollWidth") <= page.get(table, "clientWidth")
        page.wait(f"document.querySelector('{strip}').clientHeight > 60")
        shapes[width] = page.get(strip, "clientHeight") / page.get(strip, "clientWidth")
    assert shapes[PHONE] > 2 * shapes[DESK]


@both_widths
def test_the_slider_moves_the_wires(page: Page, report: Path, width: int) -> None:
    page.open(report, width, **STILL)
    before = drawn(page, f"{WIRES} canvas")
    page.key(f"{WIRES} input", *["ArrowRight"] * 3)
    assert page.get(f"{WIRES} input", "value") == "3"
    assert page.get(f"{WIRES} output", "textContent").startswith("step 300")
    assert drawn(page, f"{WIRES} canvas") != before
    matrix = f"{WIRES} .panel:nth-child(2) canvas"
    passed = drawn(page, matrix)
    page.click(f'{WIRES} [data-choice="rounded"]')
    assert drawn(page, matrix) != passed


def test_play_and_the_space_bar_move_the_wires(page: Page, report: Path) -> None:
    page.open(report, DESK, **STILL)
    value = f"Number(document.querySelector('{WIRES} input').value)"
    assert page.run(value) == 0
    page.click(f"{WIRES} .play")
    page.wait(f"{value} >= 1")
    page.key(f"{WIRES} canvas", " ")
    stopped = page.run(value)
    page.run("new Promise((done) => setTimeout(done, 900))")
    assert page.run(value) == stopped
    page.key(f"{WIRES} canvas", "ArrowLeft")
    assert page.run(value) == max(stopped - 1, 0)
    page.key(f"{WIRES} input", " ")
    page.wait(f"{value} > {stopped}")


def test_the_wires_move_by_themselves_unless_less_motion_is_wished(
    page: Page, report: Path
) -> None:
    page.open(report, DESK, prefers_reduced_motion="no-preference")
    page.wait(f"Number(document.querySelector('{WIRES} input').value) >= 2")


@both_widths
def test_boxes_hide_methods_and_seeds(page: Page, report: Path, width: int) -> None:
    page.open(report, width, **STILL)
    assert lines(page) == 4  # two methods with two seeds
    for box, left in (("line", 2), ("seed", 1), ("line", 2)):
        page.click(f'{CHART} input[data-{box}="1"]')
        assert lines(page) == left


def test_axes_can_be_chosen(page: Page, report: Path) -> None:
    page.open(report, DESK, **STILL)
    seen = {first_line(page)}
    for choice in ("loss", "seconds", "linear", "log"):
        page.click(f'{CHART} [data-choice="{choice}"]')
        seen.add(first_line(page))
    names = texts(page, f"{CHART} .axis-name")
    assert names == ["seconds of training", "training loss (log scale)"]
    assert len(seen) >= 3
    page.get(f"{CHART} select", "selectedIndex = 0")
    page.get(f"{CHART} select", "dispatchEvent(new Event('change'))")
    assert lines(page) == 2


def test_a_point_says_its_values(page: Page, report: Path) -> None:
    page.open(report, DESK, **STILL)
    page.mouse("Moved", *page.place(f"{CHART} .plot"))
    said = page.get(f"{CHART} .tip", "textContent")
    assert all(words in said for words in ("rounded error", "step ", "seed "))
    page.mouse("Moved", 2, 2)
    page.wait(f"!document.querySelector('{CHART} .tip')")
    page.key(f"{CHART} .plot", "ArrowRight", "ArrowRight")
    assert "step 100" in page.get(f"{CHART} .near-words", "textContent")


def test_a_tap_says_a_value(page: Page, report: Path) -> None:
    page.open(report, PHONE, **STILL)
    x, y = page.place(f"{CHART} .plot", 0.6)
    page.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
    page.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    page.wait(f"!!document.querySelector('{CHART} .tip')")


def test_dragging_and_the_wheel_zoom(page: Page, report: Path) -> None:
    page.open(report, DESK, **STILL)
    plot, unchanged = f"{CHART} .plot", f"document.querySelector('{CHART} .reset').disabled"
    whole = first_line(page)
    start, end = page.place(plot, 0.3, 0.3), page.place(plot, 0.6, 0.7)
    page.mouse("Moved", *start)
    page.mouse("Pressed", *start, button="left", clickCount=1)
    page.mouse("Moved", *end, button="left", buttons=1)
    assert page.count(f"{CHART} .band") == 1
    page.mouse("Released", *end, button="left", clickCount=1)
    assert first_line(page) != whole
    assert not page.run(unchanged)
    page.click(f"{CHART} .reset")
    assert first_line(page) == whole
    x, y = page.place(plot)
    page.mouse("Moved", x - 5, y)
    page.mouse("Moved", x, y)
    page.mouse("Wheel", x, y, deltaX=0, deltaY=-120)
    page.wait(f"!{unchanged}")
    assert first_line(page) != whole
    for count in (1, 2):
        for kind in ("Pressed", "Released"):
            page.mouse(kind, x, y, button="left", clickCount=count)
    page.wait(unchanged)
    assert first_line(page) == whole


def test_a_scrolling_page_does_not_zoom(page: Page, report: Path) -> None:
    page.open(report, DESK, **STILL)
    x, y = page.place(f"{CHART} .plot")
    page.mouse("Moved", x - 5, y)
    page.mouse("Moved", x, y)
    page.run("scrollBy({top: 3, behavior: 'instant'})")
    page.run("new Promise((done) => setTimeout(done, 100))")
    before = page.run("scrollY")
    page.mouse("Wheel", x, y, deltaX=0, deltaY=-100)
    page.wait(f"scrollY < {before}")
    assert page.get(f"{CHART} .reset", "disabled")


@pytest.mark.parametrize("clipboard", [True, False])
def test_commands_are_copied_or_selected(page: Page, report: Path, clipboard: bool) -> None:
    page.open(report, DESK, **STILL)
    works = "copied = text; return Promise.resolve();" if clipboard else "return Promise.reject();"
    page.run(
        "var copied = null; Object.defineProperty(navigator, 'clipboard',"
        f"{{value: {{writeText: (text) => {{ {works} }}}}}});"
        "document.execCommand = () => { copied = String(getSelection()); return false; };"
    )
    page.key("#results .copy", "Enter")
    command, area = "sparsewire identity --seeds 0 1", "#said textarea"
    page.wait("document.querySelector('#said span')?.textContent")
    said = page.get("#said span", "textContent")
    assert said == ("Copied:" if clipboard else "Press Ctrl+C (⌘C) to copy:")
    assert page.get(area, "value") == command
    if clipboard:
        assert page.run("copied") == command
        assert page.run("document.activeElement.className") == "copy"
    else:
        assert page.get(area, "matches(':focus')")
        assert page.get(area, "selectionEnd") - page.get(area, "selectionStart") == len(command)


def test_colours_can_be_toggled(page: Page, report: Path) -> None:
    page.open(report, DESK, prefers_color_scheme="light", **STILL)
    ground = "getComputedStyle(document.body).backgroundColor"
    light, wires = page.run(ground), drawn(page, f"{WIRES} canvas")
    page.click("#theme")
    assert page.run(ground) != light
    assert drawn(page, f"{WIRES} canvas") != wires
    page.open(report, DESK, prefers_color_scheme="light", **STILL)
    page.click("#theme")
    page.wait(f"{ground} === '{light}'")  # it was remembered


@both_widths
def test_glimpses_show_their_points_and_boxes_move(page: Page, report: Path, width: int) -> None:
    page.open(report, width, **STILL)
    gallery = '[data-viewer="glimpses"]'
    shown = f"getComputedStyle(document.querySelector('{gallery} .card .dots')).visibility"
    assert page.run(shown) == "hidden"
    page.key(f"{gallery} .card")
    assert page.run(shown) == "visible"
    last = page.get(f"{gallery} polygon", "getAttribute('points')")
    page.key(f"{gallery} input", "ArrowLeft")
    assert page.get(f"{gallery} polygon", "getAttribute('points')") != last
    mistakes = [words.startswith("✗ mistake") for words in texts(page, f"{gallery} figcaption")]
    assert mistakes == [False] * 4 + [True] * 2
    assert page.count(f"{gallery} img") == page.count(f'{gallery} img[alt]:not([alt=""])')


@both_widths
@pytest.mark.parametrize("part", [".wide", ".narrow"])
def test_numbers_move_through_levels_and_keys_through_steps(
    page: Page, report: Path, width: int, part: str
) -> None:
    page.open(report, width, **STILL)
    part = f'[data-viewer="sorting"] {part}'
    last = drawn(page, f"{part} canvas")
    page.key(f"{part} input", "ArrowLeft")
    assert drawn(page, f"{part} canvas") != last


def test_it_prints_light_and_whole(page: Page, report: Path) -> None:
    page.open(report, DESK, prefers_color_scheme="dark", **STILL)
    found = page.call("Page.printToPDF", printBackground=True, timeout=60)
    assert len(found["data"]) > 50_000
    page.call("Emulation.setEmulatedMedia", media="print")
    assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.run("getComputedStyle(document.querySelector('nav')).display") == "none"


def test_hostile_records_do_nothing(page: Page, tmp_path: Path) -> None:
    record = for_report("identity", command=HOSTILE, device=HOSTILE)
    found = load([write(tmp_path / "x.jsonl", record)])
    write_page(found, tmp_path / "report.html", HOSTILE)
    page.open(tmp_path / "report.html", DESK, **STILL)
    assert page.run("document.title") == page.get("h1", "textContent") == HOSTILE
    assert lines(page) == 1
    assert page.count("img") == 0
