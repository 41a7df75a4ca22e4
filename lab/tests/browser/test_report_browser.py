"""The report in a real Chromium: everything that moves, at the widths of a phone and a desk."""

from pathlib import Path
from typing import Any

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


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    bench = write_bench(folder / "results.csv")
    write_page(load([fill(folder / "runs")], bench), folder / "report.html", "A title")
    return folder / "report.html"


def inside(page: Page, selector: str, x: float, y: float) -> tuple[float, float]:
    """A place on the screen, in shares of an element that is brought into view."""
    page.run(f"document.querySelector('{selector}').scrollIntoView({{block: 'center'}})")
    page.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    box: Any = page.run(
        f"(({{x, y, width, height}}) => [x, y, width, height])"
        f"(document.querySelector('{selector}').getBoundingClientRect())"
    )
    return box[0] + x * box[2], box[1] + y * box[3]


def click(page: Page, selector: str) -> None:
    x, y = inside(page, selector, 0.5, 0.5)
    for kind in ("Pressed", "Released"):
        page.mouse(kind, x, y, button="left", clickCount=1)


def picture_of(page: Page, selector: str) -> str:
    return page.run(f"document.querySelector('{selector}').toDataURL()")


def lines(page: Page) -> int:
    return page.run(f"document.querySelectorAll('{CHART} .line').length")


def first_line(page: Page) -> str:
    return page.run(f"document.querySelector('{CHART} .line').getAttribute('d')")


@pytest.mark.parametrize("width", [PHONE, DESK])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_the_window(page: Page, report: Path, width: int, scheme: str) -> None:
    page.open(report, width, prefers_color_scheme=scheme, **STILL)
    page.run("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    assert page.run("document.documentElement.scrollWidth") <= width
    wide = "[...document.querySelectorAll('canvas, svg.plot')].map((c) => c.clientWidth)"
    assert min(page.run(wide)) > 100


def test_the_published_results_fit_too(page: Page, tmp_path: Path) -> None:
    found = load([ROOT / "results"], ROOT / "results" / "bench.csv")
    write_page(found, tmp_path / "report.html", "A title")
    for width in (DESK, PHONE):
        page.open(tmp_path / "report.html", width, **STILL)
        assert page.run("document.documentElement.scrollWidth") <= width
        assert page.run("document.querySelectorAll('.viewer').length") >= 4
        table = "document.querySelector('#results .scroll')"
        assert page.run(f"{table}.scrollWidth <= {table}.clientWidth")


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_the_slider_moves_the_wires(page: Page, report: Path, width: int) -> None:
    page.open(report, width, **STILL)
    before = picture_of(page, f"{WIRES} canvas")
    page.run(f"document.querySelector('{WIRES} input').focus()")
    for _ in range(3):
        page.key("ArrowRight")
    assert page.run(f"document.querySelector('{WIRES} input').value") == "3"
    assert page.run(f"document.querySelector('{WIRES} output').textContent").startswith("step 300")
    assert picture_of(page, f"{WIRES} canvas") != before
    matrix = f"{WIRES} .panel:nth-child(2) canvas"
    passed = picture_of(page, matrix)
    click(page, f'{WIRES} [data-choice="rounded"]')
    assert picture_of(page, matrix) != passed


def test_play_and_the_space_bar_move_the_wires(page: Page, report: Path) -> None:
    page.open(report, DESK, **STILL)
    value = f"Number(document.querySelector('{WIRES} input').value)"
    assert page.run(value) == 0
    click(page, f"{WIRES} .play")
    page.wait(f"{value} >= 1")
    page.run(f"document.querySelector('{WIRES} canvas').focus()")
    page.key(" ", "Space", " ")
    stopped = page.run(value)
    page.run("new Promise((done) => setTimeout(done, 900))")
    assert page.run(value) == stopped
    page.key("ArrowLeft")
    assert page.run(value) == max(stopped - 1, 0)
    page.run(f"document.querySelector('{WIRES} input').focus()")
    page.key(" ", "Space", " ")
    page.wait(f"{value} > {stopped}")


def test_the_wires_move_by_themselves_unless_less_motion_is_wished(
    page: Page, report: Path
) -> None:
    page.open(report, DESK, prefers_reduced_motion="no-preference")
    page.wait(f"Number(document.querySelector('{WIRES} input').value) >= 2")


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_boxes_hide_methods_and_seeds(page: Page, report: Path, width: int) -> None:
    page.open(report, width, **STILL)
    assert lines(page) == 4  # two methods with two seeds
    click(page, f'{CHART} input[data-line="1"]')
    assert lines(page) == 2
    click(page, f'{CHART} input[data-seed="1"]')
    assert lines(page) == 1
    click(page, f'{CHART} input[data-line="1"]')
    assert lines(page) == 2


def test_axes_can_be_chosen(page: Page, report: Path) -> None:
    page.open(report, DESK, **STILL)
    seen = {first_line(page)}
    for choice in ("loss", "seconds", "linear", "log"):
        click(page, f'{CHART} [data-choice="{choice}"]')
        seen.add(first_line(page))
    names = page.run(
        f"[...document.querySelectorAll('{CHART} .axis-name')].map((name) => name.textContent)"
    )
    assert names == ["seconds of training", "training loss (log scale)"]
    assert len(seen) >= 3
    tasks = f"document.querySelector('{CHART} select')"
    page.run(f"{tasks}.selectedIndex = 0; {tasks}.dispatchEvent(new Event('change'))")
    assert lines(page) == 2


def test_a_point_says_its_values(page: Page, report: Path) -> None:
    page.open(report, DESK, **STILL)
    page.mouse("Moved", *inside(page, f"{CHART} .plot", 0.5, 0.5))
    said = page.run(f"document.querySelector('{CHART} .tip').textContent")
    assert "rounded error" in said
    assert "step " in said
    assert "seed " in said
    page.mouse("Moved", 2, 2)
    page.wait(f"!document.querySelector('{CHART} .tip')")
    page.run(f"document.querySelector('{CHART} .plot').focus()")
    page.key("ArrowRight")
    page.key("ArrowRight")
    assert "step 100" in page.run(f"document.querySelector('{CHART} .near-words').textContent")


def test_a_tap_says_a_value(page: Page, report: Path) -> None:
    page.open(report, PHONE, **STILL)
    x, y = inside(page, f"{CHART} .plot", 0.6, 0.5)
    page.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
    page.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    page.wait(f"!!document.querySelector('{CHART} .tip')")


def test_dragging_and_the_wheel_zoom(page: Page, report: Path) -> None:
    page.open(report, DESK, **STILL)
    plot, reset = f"{CHART} .plot", f"document.querySelector('{CHART} .reset')"
    whole = first_line(page)
    start, end = inside(page, plot, 0.3, 0.3), inside(page, plot, 0.6, 0.7)
    page.mouse("Moved", *start)
    page.mouse("Pressed", *start, button="left", clickCount=1)
    page.mouse("Moved", *end, button="left", buttons=1)
    assert page.run(f"!!document.querySelector('{CHART} .band')")
    page.mouse("Released", *end, button="left", clickCount=1)
    dragged = first_line(page)
    assert dragged != whole
    assert not page.run(f"{reset}.disabled")
    click(page, f"{CHART} .reset")
    assert first_line(page) == whole
    middle = inside(page, plot, 0.5, 0.5)
    page.mouse("Moved", middle[0] - 5, middle[1])
    page.mouse("Moved", *middle)
    page.mouse("Wheel", *middle, deltaX=0, deltaY=-120)
    page.wait(f"!{reset}.disabled")
    assert first_line(page) != whole
    for count in (1, 2):
        for kind in ("Pressed", "Released"):
            page.mouse(kind, *middle, button="left", clickCount=count)
    page.wait(f"{reset}.disabled")
    assert first_line(page) == whole


def test_a_scrolling_page_does_not_zoom(page: Page, report: Path) -> None:
    page.open(report, DESK, **STILL)
    middle = inside(page, f"{CHART} .plot", 0.5, 0.5)
    page.mouse("Moved", middle[0] - 5, middle[1])
    page.mouse("Moved", *middle)
    page.run("scrollBy({top: 3, behavior: 'instant'})")
    page.run("new Promise((done) => setTimeout(done, 100))")
    before = page.run("scrollY")
    page.mouse("Wheel", *middle, deltaX=0, deltaY=-100)
    page.wait(f"scrollY < {before}")
    assert page.run(f"document.querySelector('{CHART} .reset').disabled")


@pytest.mark.parametrize("clipboard", [True, False])
def test_commands_are_copied_or_selected(page: Page, report: Path, clipboard: bool) -> None:
    page.open(report, DESK, **STILL)
    works = "copied = text; return Promise.resolve();" if clipboard else "return Promise.reject();"
    page.run(
        "var copied = null; Object.defineProperty(navigator, 'clipboard',"
        f"{{value: {{writeText: (text) => {{ {works} }}}}}});"
        "document.execCommand = () => { copied = String(getSelection()); return false; };"
    )
    page.run("document.querySelector('#results .copy').focus()")
    page.key("Enter", "Enter", "\r")
    command = "sparsewire identity --seeds 0 1"
    page.wait("document.querySelector('#said span')?.textContent")
    said = page.run("document.querySelector('#said span').textContent")
    assert said == ("Copied:" if clipboard else "Press Ctrl+C (⌘C) to copy:")
    area = "document.querySelector('#said textarea')"
    assert page.run(f"{area}.value") == command
    if clipboard:
        assert page.run("copied") == command
        assert page.run("document.activeElement.className") == "copy"
    else:
        assert page.run(f"document.activeElement === {area}")
        assert page.run(f"{area}.selectionEnd - {area}.selectionStart") == len(command)


def test_colours_can_be_toggled(page: Page, report: Path) -> None:
    page.open(report, DESK, prefers_color_scheme="light", **STILL)
    ground = "getComputedStyle(document.body).backgroundColor"
    light, wires = page.run(ground), picture_of(page, f"{WIRES} canvas")
    click(page, "#theme")
    assert page.run(ground) != light
    assert picture_of(page, f"{WIRES} canvas") != wires
    page.open(report, DESK, prefers_color_scheme="light", **STILL)
    click(page, "#theme")
    page.wait(f"{ground} === '{light}'")  # it was remembered


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(page: Page, report: Path, scheme: str) -> None:
    """At least 4.5 for all text, by the formula of WCAG."""
    page.open(report, DESK, prefers_color_scheme=scheme, **STILL)
    script = """(() => {
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
    assert page.run(script) == []


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_glimpses_show_their_points_and_boxes_move(page: Page, report: Path, width: int) -> None:
    page.open(report, width, **STILL)
    gallery = '[data-viewer="glimpses"]'
    shown = f"getComputedStyle(document.querySelector('{gallery} .card .dots')).visibility"
    assert page.run(shown) == "hidden"
    page.run(f"document.querySelector('{gallery} .card').focus()")
    assert page.run(shown) == "visible"
    points = f"document.querySelector('{gallery} polygon').getAttribute('points')"
    last = page.run(points)
    page.run(f"document.querySelector('{gallery} input').focus()")
    page.key("ArrowLeft")
    assert page.run(points) != last
    captions = page.run(
        f"[...document.querySelectorAll('{gallery} figcaption')].map((c) => c.textContent)"
    )
    assert [words.startswith("✗ mistake") for words in captions] == [False] * 4 + [True] * 2
    assert page.run(f"[...document.querySelectorAll('{gallery} img')].every((i) => i.alt)")


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_numbers_move_through_the_levels(page: Page, report: Path, width: int) -> None:
    page.open(report, width, **STILL)
    strip, level = '[data-viewer="sorting"] .wide canvas', '[data-viewer="sorting"] .wide input'
    done = picture_of(page, strip)
    page.run(f"document.querySelector('{level}').focus()")
    page.key("ArrowLeft")
    assert picture_of(page, strip) != done
    step = '[data-viewer="sorting"] .narrow input'
    keys = '[data-viewer="sorting"] .narrow canvas'
    before = picture_of(page, keys)
    page.run(f"document.querySelector('{step}').focus()")
    page.key("ArrowLeft")
    assert picture_of(page, keys) != before


def test_digits_stand_below_each_other_where_there_is_no_room(page: Page, tmp_path: Path) -> None:
    """Of eight numbers of three digits a row is three digits high then, and not one."""
    write_page(load([ROOT / "results"], None), tmp_path / "report.html", "A title")
    shapes = {}
    for width in (DESK, PHONE):
        page.open(tmp_path / "report.html", width, **STILL)
        strip = "document.querySelector('[data-viewer=\"sorting\"] .wide canvas')"
        page.wait(f"{strip}.clientHeight > 60")
        shapes[width] = page.run(f"{strip}.clientHeight / {strip}.clientWidth")
    assert shapes[PHONE] > 2 * shapes[DESK]


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
    assert page.run("document.title") == HOSTILE
    assert page.run("document.querySelector('h1').textContent") == HOSTILE
    assert lines(page) == 1
    assert page.run("document.querySelectorAll('img').length") == 0
