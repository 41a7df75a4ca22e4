"""The page contains the numbers of the rows, and the committed one is that of the record."""

import re
from pathlib import Path
from typing import Any

import pytest
from lab.tests.bench.rows import make_record, make_row

from sparsewire_lab.bench.page import FIGURE, LEAGUE_PAGE, make_league, make_page
from sparsewire_lab.bench.record import Row, read
from sparsewire_lab.bench.targets import GPU, ONE_THREAD, targets_for

ROOT = Path(__file__).resolve().parents[3]
ONE, TWO, H200 = "a chip, 1 of 2 threads", "a chip, 2 of 2 threads", "NVIDIA H200"


def cells(text: str, *start: str) -> dict[str, str]:
    """The cells of the first table row that begins with these, by the head of its table."""
    head: list[str] = []
    for line in text.splitlines():
        row = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if row[: len(start)] == list(start):
            return dict(zip(head, row, strict=True))
        head = (head or row) if row else []
    raise AssertionError(f"no row {start}")


def sort_row(case: str, engine: str, n: int, ms: float | None, **columns: Any) -> Row:
    usual: dict[str, Any] = {
        "device": ONE,
        "batch": 64,
        "package": "",
        "k": None,
        "m": None,
        "r": None,
    }
    usual |= {"case": case, "engine": engine, "n": n, "ms_forward_backward": ms}
    return make_row(**usual | columns)


SKIPPED = {"status": "skipped", "ms_forward": None, "note": "lapsum is not installed: …"}
TIMES = {"auto": 0.6, "torch.sort": 0.1, "softsort": 0.3, "torchsort": 2.4}
RANKS = [
    *(sort_row("soft_rank", engine, 64, ms) for engine, ms in TIMES.items()),
    sort_row("soft_rank", "lapsum", 64, None, **SKIPPED),
    sort_row("soft_rank", "auto", 1024, 5.0),
    sort_row("soft_rank", "torchsort", 1024, 12.0, package="torchsort 0.1"),
    sort_row("soft_rank", "auto", 64, 0.05, batch=1),
]


def test_every_number_is_where_it_belongs() -> None:
    text = make_page(make_record(), "some.csv")
    assert "from its record, `some.csv`" in text.replace("\n", " ")
    assert f"![Time and memory against the size]({FIGURE})" in text
    row = cells(text, "100", "time")
    assert (row["ours"], row["reference"], row["floor"]) == ("100", "300", "0.5")
    assert row["plain PyTorch"] == ""
    assert cells(text, "1,000", "time")["plain PyTorch"] == "–"  # skipped
    row = cells(text, "100", "memory")
    assert (row["ours"], row["reference"], row["floor"]) == ("1", "10", "")
    growth = cells(text, "∝ n^", "time")
    assert (growth["ours"], growth["reference"]) == ("2.00", "2.00")
    assert cells(text, "∝ n^", "memory")["ours"] == "1.00"
    assert "Ceilings: copy 20 G/s, exp 1 G/s, matmul float32 100 G/s." in text
    origin = "2030-01-02T03:04:05+00:00; commit `abc`; torch 2.13."
    assert f"Error at most 1e-07 (ours), 1e-07 (others). Noise ± 2 %. {origin}" in text
    assert "quick run" not in text
    assert "soft_rank" not in text


def test_quick_runs_and_engines_that_are_wrong_are_marked() -> None:
    failed = make_row(engine="chunked", status="wrong", ms_forward_backward=None, plan="quick")
    text = make_page([make_row(plan="quick"), failed], "r")
    assert cells(text, "64", "time")["chunked"] == "wrong"
    assert "quick run" in text
    assert "## " not in make_page([], "r")


def test_glimpses_are_distinguished_by_their_shape_and_canvases_show_the_forward_pass() -> None:
    usual = {"case": "glimpse", "variant": "1×32×32", "n": 1024, "batch": 16}
    rows = [make_row(**usual), make_row(**usual, engine="reference", ms_forward_backward=5.0)]
    rows.append(make_row(case="canvases", n=100, ms_forward=0.08, ms_forward_backward=None))
    text = make_page(rows, "r")
    row = cells(text, "1×32×32", "time")
    assert (row["ours"], row["reference"]) == ("2", "5")
    assert cells(text, "100", "time")["ours"] == "0.08"


def test_sorts_and_targets_are_compared_with_the_fastest_soft_peer() -> None:
    text = make_league(RANKS, "some.csv")
    row = cells(text, "64", "64", "time")
    assert (row["SoftSort"], row["LapSum"], row["torch.sort"]) == ("0.3", "missing", "0.1")
    assert row["best peer ÷ ours"] == "0.5"
    assert cells(text, "1", "64", "time")["ours"] == "0.05"
    assert cells(text, "64", "1,024", "time")["best peer ÷ ours"] == "2.4"
    row = cells(text, "`soft_rank`, n = 64")
    assert (row["target"], row["ours"], row["reached"]) == ("0.69 ms", "0.6 ms, 5 MiB", "yes")
    assert cells(text, "`soft_rank`, n = 1,024", "4.4 ms")["reached"] == "no"
    row = cells(text, "`soft_rank`, n = 1,024", "less than torchsort, SoftTorch and LapSum")
    assert (row["fastest of those"], row["reached"]) == ("torchsort, 12 ms", "yes")
    assert "torchsort 0.1." in text
    assert "On a GPU nothing has been measured yet" in text
    assert "soft_rank" not in make_page(RANKS, "r")


def test_soft_sorts_that_no_longer_exist_are_not_shown() -> None:
    old = [row | {"date": "2026-11-16T11:49:36+00:00", "device": H200} for row in RANKS]
    assert make_league(old, "r") == ""
    assert H200 not in make_league([*old, *RANKS], "r")


def test_properties_are_a_table() -> None:
    notes = {"auto": "any n: yes; in order: yes", "lapsum": "any n: no; in order: –"}
    rows = [sort_row("properties", e, 0, None, note=note) for e, note in notes.items()]
    text = make_league(rows, "r")
    assert cells(text, "ours") == {"": "ours", "any n": "yes", "in order": "yes"}
    assert cells(text, "LapSum") == {"": "LapSum", "any n": "no", "in order": "–"}
    assert "- **any n**: It sorts" in text


def test_targets_belong_to_devices() -> None:
    assert (targets_for(ONE), targets_for(H200), targets_for(TWO)) == (ONE_THREAD, GPU, ())
    assert targets_for("a chip, 11 of 12 threads") == ()
    text = make_league([one | {"device": TWO} for one in RANKS], "r")
    assert "soft_rank" in text
    assert "Targets" not in text


def test_on_a_gpu_the_captured_time_and_the_memory_count() -> None:
    usual: dict[str, Any] = {"case": "step", "n": 1024, "batch": 64, "device": H200}
    eager = make_row(ms_forward_backward=3.0, **usual)
    captured = make_row(mode="captured", ms_forward_backward=0.3, **usual)
    text = make_page([eager, captured], "r")
    row = cells(text, "training step, n = 1,024")
    assert (row["target"], row["ours"]) == ("0.5 ms, 64 MiB", "0.3 ms, 5 MiB")
    assert row["reached"] == "yes"
    assert cells(text, "training step, n = 16,384, all pairs")["reached"] == ""
    large = make_page([captured | {"extra_mib": 65.0}], "r")
    assert cells(large, "training step, n = 1,024")["reached"] == "no"


@pytest.mark.skipif(not (ROOT / "results" / "bench.csv").exists(), reason="needs a clone")
def test_the_committed_page_is_that_of_the_record() -> None:
    rows = read(ROOT / "results" / "bench.csv")
    text = make_page(rows, "results/bench.csv")
    page = ROOT / "docs" / "benchmarks.md"
    again = "sparsewire bench --draw --record results/bench.csv --page docs/benchmarks.md"
    assert page.read_text(encoding="utf-8") == text, f"run: {again}"
    league = make_league(rows, "results/bench.csv")
    assert (page.parent / LEAGUE_PAGE).read_text(encoding="utf-8") == league, f"run: {again}"
    assert (page.parent / FIGURE).exists()
