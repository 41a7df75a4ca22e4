"""The page says what the rows say, and the one that is committed is that of the record."""

import re
from pathlib import Path

import pytest
from lab.tests.bench.rows import make_record, make_row

from sparsewire_lab.bench.page import page
from sparsewire_lab.bench.record import Row, read
from sparsewire_lab.cli.bench import find_places

ROOT = Path(__file__).resolve().parents[3]


def cells(text: str, *start: str) -> list[str]:
    """The cells of the table row that begins so."""
    for line in text.splitlines():
        found = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if found[: len(start)] == list(start):
            return found
    raise AssertionError(f"no row {start}")


def test_every_number_stands_where_it_belongs() -> None:
    text = page(make_record(), "results.csv", "growth.png")
    head = cells(text, "n", "engine")
    row = dict(zip(head, cells(text, "100", "reference"), strict=True))
    assert row["forward and backward"] == "300"
    assert (row["× ours"], row["±"]) == ("3.00", "2 %")
    assert row["extra MiB"] == "10.0"
    assert row["error"] == "1e-07"
    assert (row["floor"], row["by"]) == ("0.5", "exp")
    assert (row["time / floor"], row["time / near floor"]) == ("600.0", "1,200.0")
    assert dict(zip(head, cells(text, "1,000", "ours"), strict=True))["× ours"] == "1.00"
    skipped = dict(zip(head, cells(text, "1,000", "plain PyTorch"), strict=True))
    assert skipped["note"] == r"skipped: its tables would not fit \| at all"
    assert skipped["× ours"] == skipped["forward"] == ""
    assert cells(text, "reference")[1:] == ["2.00", "2.00"]
    assert cells(text, "ours")[1:] == ["2.00", "1.00"]
    assert cells(text, "copy")[1] == "20 G/s"


def test_it_says_where_the_numbers_come_from_and_what_a_ratio_is() -> None:
    text = page(make_record(), "results.csv", "growth.png")
    assert "a time divided by that of ours" in text
    assert "from its record, `results.csv`" in text
    assert "![Time and memory against the size](growth.png)" in text
    assert "2030-01-02T03:04:05+00:00; commit `abc`; torch 2.13." in text
    assert "quick run" not in text
    assert "quick run" in page([make_row(plan="quick")], "results.csv", "growth.png")


def test_targets_stand_beside_what_was_measured() -> None:
    def row(mode: str, ms: float, device: str = "NVIDIA H200") -> Row:
        counts = {"bytes": 4e6, "exps": 3e7, "flops": 5e8}
        sizes = {"case": "step", "n": 1024, "batch": 64}
        return make_row(device=device, mode=mode, ms_forward_backward=ms, **sizes, **counts)

    text = page([row("eager", 3.0), row("captured", 0.3)], "r", "f")
    found = cells(text, "n = 1,024")
    assert found[2:4] == ["0.5 ms, 64 MiB", "0.3 ms, 5 MiB"]
    assert found[4:] == ["4e+06", "3e+07", "5e+08", "0.5 ms", "0.25 ms"]
    assert cells(text, "n = 16,384, all pairs")[2:4] == ["40 ms, 1 GiB", ""]
    assert "Targets" not in page([row("eager", 3.0, "another machine")], "r", "f")


def test_glimpses_are_told_apart_by_their_shape() -> None:
    rows = [
        make_row(case="glimpse", variant="1×32×32", n=1024, batch=16),
        make_row(case="glimpse", variant="1×32×32", n=1024, batch=16, engine="reference",
                 ms_forward_backward=5.0),
    ]  # fmt: skip
    assert cells(page(rows, "r", "f"), "1×32×32", "16", "reference")[6] == "2.50"


def test_an_empty_record_gives_a_page_without_tables() -> None:
    assert "## " not in page([], "results.csv", "growth.png")


@pytest.mark.skipif(not (ROOT / "benchmarks" / "results.csv").exists(), reason="needs a clone")
def test_the_committed_page_is_that_of_the_record() -> None:
    places = find_places(None)
    assert places.record == ROOT / "benchmarks" / "results.csv"
    text = page(read(places.record), places.record_name, places.figure_name)
    assert places.page.read_text(encoding="utf-8") == text, "run: sparsewire bench --draw"
    assert places.figure.exists()
