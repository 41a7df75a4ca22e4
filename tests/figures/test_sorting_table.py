"""The tables of the sorting experiment: numbers by hand, and what goes into which."""

from pathlib import Path

import pytest
from attention_runs import make_attention
from sorting_runs import make_sorting

from sparsewire.figures.pages import VALIDATION_BEGIN, VALIDATION_END
from sparsewire.figures.sorting_table import (
    fill_sorting,
    sorting_table,
    sorting_validation_table,
)
from sparsewire.figures.tables import BEGIN, END, write_table


def rows(table: str) -> list[list[str]]:
    return [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]


def test_a_row_by_hand() -> None:
    """Of 8 and 10 %: mean 9, deviation √2 = 1.41; of 12 and 16 %: 14 and 2.83."""
    runs = [
        make_sorting(
            [0.9, error],
            seed=seed,
            steps=20_000,
            other={
                "final": {"error": error, "strict": strict, "elements": 0.0125},
                "seconds": seconds,
                "step_ms": step,
            },
        )
        for seed, (error, strict, seconds, step) in enumerate(
            [(0.08, 0.12, 44.0, 3.0), (0.10, 0.16, 46.0, 4.0)]
        )
    ]
    head, _, row = sorting_table(runs).splitlines()
    assert row == (
        "| 16 | 3 | likelihood | order | ours | 20,000 × 64, 45 s | 2 | "
        "9.00 ± 1.41 | 14.00 ± 2.83 | 1.25 ± 0.00 | 3.5 | around 40 % |"
    )
    assert head.count("|") == row.count("|")


def test_a_row_with_little_known() -> None:
    run = make_sorting([0.9, 0.0123], size=5, data="digits", method="odd_even", loss="permutation")
    assert sorting_table([run]).splitlines()[2] == (
        "| 5 | 3, small | odd-even network | permutation | ours | 1,000 × 64, 1 s | 1 | "
        "1.23 | 1.23 | – | – | – |"
    )


def test_a_step_that_shared_its_device_is_marked() -> None:
    runs = [make_sorting([0.9], seed=s, other={"step_ms": 2.0, "at_once": 3}) for s in (0, 1)]
    (row,) = rows(sorting_table(runs))
    assert row[-2] == "2, 3 at once"


def test_seeds_that_diverged_are_said_and_not_averaged() -> None:
    bad = {"status": "diverged", "final": {"error": 0.9}, "seconds": 900.0}
    runs = [
        make_sorting([0.01], seed=0, other={"seconds": 20.0}),
        make_sorting([0.03], seed=1, other={"seconds": 40.0}),
        make_sorting([0.9], seed=2, other=bad),
    ]
    (row,) = rows(sorting_table(runs))
    assert row[5:8] == ["1,000 × 64, 30 s", "1 of 3 diverged", "2.00 ± 1.41"]
    (row,) = rows(sorting_table(runs[2:]))
    assert row[5:9] == ["1,000 × 64, –", "1 of 1 diverged", "–", "–"]


def test_rows_are_in_order_and_never_alike() -> None:
    runs = [
        make_sorting([0.1], key="a", lr=0.1),
        make_sorting([0.1], key="b", lr=0.2),
        make_sorting([0.1], key="c", size=4),
        make_sorting([0.1], key="d", method="sampled", loss="steps", preset="paper"),
        make_sorting([0.1], key="e", method="sampled", loss="steps", preset="ours"),
        make_sorting([0.1], key="f", size=3, places=4, network="wide"),
    ]
    found = [row[:5] for row in rows(sorting_table(runs))]
    assert found == [
        ["4", "3", "likelihood", "order", "ours"],
        ["16", "3", "likelihood, lr 0.1", "order", "ours"],
        ["16", "3", "likelihood, lr 0.2", "order", "ours"],
        ["16", "3", "sampled quicksort", "steps", "ours"],
        ["16", "3", "sampled quicksort", "steps", "paper"],
        ["3", "4", "likelihood", "order", "ours"],
    ]


def test_validation_rows_have_a_table_of_their_own() -> None:
    runs = [
        make_sorting([0.5], key="a"),
        make_sorting([0.02], strict=[0.03], key="b", split="validation", lr=0.003, dropout=0.25),
        make_sorting([0.01], key="c", split="validation", temperature=0.5, preset="paper", lr=0.1),
    ]
    ours, paper = sorting_validation_table(runs).splitlines()[2:]
    assert ours == (
        "| 16 | 3 | likelihood | order | ours | 0.003 | 1 | 1 | 0.25 | 0 | 1,000 × 64 | 1 | "
        "2.00 | 3.00 | – |"
    )
    assert paper == (
        "| 16 | 3 | likelihood | order | paper | 0.1 | 0.5 | 0 | 0 | 0 | 1,000 × 64 | 1 | "
        "1.00 | 1.00 | – |"
    )
    assert [row[7] for row in rows(sorting_table(runs))] == ["50.00"]
    assert sorting_validation_table(runs[:1]) == "No run is recorded yet.\n"


def test_both_tables_are_put_into_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    marks = f"a\n{BEGIN}\nold\n{END}\nb\n{VALIDATION_BEGIN}\nold\n{VALIDATION_END}\nc\n"
    page.write_text(marks)
    runs = [make_sorting([0.5]), make_sorting([0.1], key="b", split="validation")]
    assert write_table(page, runs) == page
    assert page.read_text() == fill_sorting(marks, runs)
    assert page.read_text() == (
        f"a\n{BEGIN}\n\n{sorting_table(runs)}\n{END}\nb\n"
        f"{VALIDATION_BEGIN}\n\n{sorting_validation_table(runs)}\n{VALIDATION_END}\nc\n"
    )
    page.write_text(f"{BEGIN}\n{END}\n")
    write_table(page, runs[1:])
    assert page.read_text() == f"{BEGIN}\n\nNo run is recorded yet.\n\n{END}\n"


def test_pages_and_records_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    content = f"{BEGIN}\n{END}\n{VALIDATION_END}\n"
    page.write_text(content)
    with pytest.raises(ValueError, match="page must hold <!-- validation table: begin -->"):
        write_table(page, [make_sorting([0.1])])
    with pytest.raises(ValueError, match="must be of one experiment; got attention, sorting"):
        write_table(page, [make_attention([0.1]), make_sorting([0.1])])
    assert page.read_text() == content
