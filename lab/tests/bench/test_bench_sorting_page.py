"""The part of the page about sorting, from rows made by hand; and the command that asks for it."""

from pathlib import Path
from typing import Any

import pytest
from lab.tests.bench.rows import RATES, make_record, make_row
from lab.tests.bench.test_page import cells
from lab.tests.bench.test_runner import Pretender

import sparsewire_lab.cli.bench as command
from sparsewire_lab.bench.page import page
from sparsewire_lab.bench.record import Row, read
from sparsewire_lab.bench.sorting_cases import SORTING
from sparsewire_lab.bench.sorting_targets import GPU, ONE_THREAD, find, targets_for
from sparsewire_lab.cli.main import main

ONE, TWO, H200 = "a chip, 1 of 2 threads", "a chip, 2 of 2 threads", "NVIDIA H200"


def row(case: str, engine: str, n: int, ms: float | None, **columns: Any) -> Row:
    usual: dict[str, Any] = {"device": ONE, "batch": 64, "k": None, "m": None, "r": None}
    usual |= {"case": case, "engine": engine, "n": n, "ms_forward_backward": ms}
    return make_row(**usual | columns)


def ranks() -> list[Row]:
    skipped = {"status": "skipped", "ms_forward": None, "note": "torchsort is not installed: …"}
    return [
        row("soft_rank", "auto", 64, 2.0),
        row("soft_rank", "torch.sort", 64, 0.1),
        row("soft_rank", "softsort", 64, 1.0),
        row("soft_rank", "neuralsort", 64, 4.0),
        row("soft_rank", "torchsort", 64, None, **skipped),
        row("soft_rank", "auto", 1024, 30.0),
        row("soft_rank", "softsort", 1024, 900.0),
        row("soft_rank", "torchsort", 1024, 12.0),
    ]


def test_without_such_rows_the_page_says_nothing_of_sorting() -> None:
    assert "sort" not in page(make_record(), "r", "f").lower()


def test_every_engine_stands_beside_ours() -> None:
    text = page(ranks(), "r", "f")
    head = cells(text, "n", "engine")
    found = dict(zip(head, cells(text, "64", "SoftSort"), strict=True))
    assert (found["forward and backward"], found["× ours"]) == ("1", "0.50")
    found = dict(zip(head, cells(text, "64", "torchsort"), strict=True))
    assert (found["× ours"], found["note"]) == ("", "skipped: torchsort is not installed: …")
    # The fastest soft peer; a hard sort is none.
    assert cells(text, "`soft_rank`", "64")[3:] == ["2", "0.1", "SoftSort, 1 ms", "0.5"]
    assert cells(text, "`soft_rank`", "1,024")[3:] == ["30", "", "torchsort, 12 ms", "0.4"]


def test_targets_are_reached_or_not() -> None:
    text = page(ranks(), "r", "f")
    assert cells(text, "`soft_rank`, n = 64")[3:] == ["SoftSort, 1 ms", "2 ms", "no"]
    assert cells(text, "`soft_rank`, n = 1,024")[3:] == ["SoftSort, 900 ms", "30 ms", "yes"]
    torchsort = "| `soft_rank`, n = 1,024 |  | 3 × torchsort | torchsort, 12 ms | 30 ms | yes |"
    assert torchsort in text
    assert cells(text, "`soft_sort`, n = 64")[3:] == ["", "", ""]
    assert cells(text, "`sort_by`, n = 1,024")[2] == "1,000 ms"


def test_targets_belong_to_devices() -> None:
    assert (targets_for(ONE), targets_for(H200), targets_for(TWO)) == (ONE_THREAD, GPU, ())
    assert targets_for("a chip, 11 of 12 threads") == ()
    two = [one | {"device": TWO} for one in ranks()]
    text = page(two, "r", "f")
    assert "Soft sorts" in text
    assert "Targets" not in text


def test_on_a_gpu_the_graph_counts() -> None:
    kind = {"device": H200, "variant": "3×784"}
    rows = [
        row("sort_by", "auto", 16, 1.5, **kind),
        row("sort_by", "auto", 16, 0.25, mode="captured", **kind),
        row("sort_by", "auto", 64, 3.0, mode="captured", **kind),
    ]
    text = page(rows, "r", "f")
    want = ["122.8 ms", "0.3 ms", "", "0.25 ms", "yes"]
    assert cells(text, "sort layer, payload 3×784, n = 16")[1:] == want
    assert cells(text, "n = 64")[1:] == ["904 ms", "1 ms", "", "3 ms", "no"]
    assert cells(text, "16", "ours, captured")[:2] == ["16", "ours, captured"]
    assert "payload of shape 3×784" in text


def test_a_target_among_peers_needs_one_that_ran() -> None:
    target = next(t for t in ONE_THREAD if t.peers and t.n == 64)
    assert find(target, []) is None
    hard = [row("soft_rank", "auto", 64, 2.0), row("soft_rank", "torch.sort", 64, 1.0)]
    assert find(target, hard) == (2.0, None, None)
    assert cells(page(hard, "r", "f"), target.work)[3:] == ["none of them ran", "2 ms", ""]


@pytest.mark.parametrize(
    ("words", "cases"),
    [
        (["sorting"], {*SORTING}),
        (["--only", "sorting"], {*SORTING}),
        (["spread", "--only", "sorting"], {"spread", *SORTING}),
        (["ceilings"], set()),
    ],
)
def test_parts_are_words_or_an_option(
    words: list[str], cases: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Always(dict[str, float]):
        def __missing__(self, engine: str) -> float:
            return 2.0

    start = lambda setting: lambda: Pretender(Always(), [])  # noqa: E731
    monkeypatch.setattr(command, "start_worker", start)
    out = tmp_path / "r.csv"
    usual = ["--device", "cpu", "--sizes", "8", "--out", str(out)]
    assert main(["bench", *words, *usual]) == 0
    rows = read(out)
    assert {r["case"] for r in rows} == {"ceilings", *cases}
    for each in rows[len(RATES) :]:
        if each["case"] in SORTING:
            assert (each["n"], each["batch"], each["pairs"]) == (8, 64, None)
            assert each["floor_limit"] == "bytes"
            assert each["floor_ms"] > each["floor_forward_ms"] > 0
    assert ("Soft sorts" in out.with_suffix(".md").read_text()) == (SORTING[0] in cases)
