"""The tables of the sorting experiment: numbers by hand, and what goes into which."""

from typing import Any

from lab.tests.figures.samples import make_sorting, rows

from sparsewire_lab.figures.tables import marks
from sparsewire_lab.sorting.table import (
    field_table,
    fill_sorting,
    protocol_table,
    sorting_table,
    speed_table,
    validation_table,
)


def test_a_row_by_hand() -> None:
    """Of 8 and 10 %: mean 9, deviation √2 = 1.41; of 12 and 16 %: 14 and 2.83."""
    runs = [
        make_sorting([0.9, error], seed=seed, steps=20_000, other={
            "final": {"error": error, "strict": strict, "elements": 0.0125},
            "seconds": seconds, "step_ms": step,
        })
        for seed, (error, strict, seconds, step) in enumerate(
            [(0.08, 0.12, 44.0, 3.0), (0.10, 0.16, 46.0, 4.0)]
        )
    ]  # fmt: skip
    head, _, row = sorting_table(runs).splitlines()
    assert row == (
        "| 16 | 3 | likelihood | order | ours | 20,000 × 64, 45 s | 2 | "
        "9.00 ± 1.41 | 14.00 ± 2.83 | 1.25 ± 0.00 | 3.5 | around 40 % |"
    )
    assert head.count("|") == row.count("|")


def test_a_row_with_little_known() -> None:
    """A step that shared its device is marked."""
    run = make_sorting([0.9, 0.0123], size=5, data="digits", method="odd_even", loss="permutation")
    assert sorting_table([run]).splitlines()[2] == (
        "| 5 | 3, small | odd-even network | permutation | ours | 1,000 × 64, 1 s | 1 | "
        "1.23 | 1.23 | – | – | – |"
    )
    runs = [make_sorting([0.9], seed=s, other={"step_ms": 2.0, "at_once": 3}) for s in (0, 1)]
    assert rows(sorting_table(runs))[0][-2] == "2, 3 at once"


def test_validation_rows_have_a_table_of_their_own() -> None:
    runs = [
        make_sorting([0.5], key="a"),
        make_sorting([0.02], strict=[0.03], key="b", split="validation", lr=0.003, dropout=0.25),
        make_sorting([0.01], key="c", split="validation", temperature=0.5, preset="paper", lr=0.1),
    ]
    task, length = "| 16 | 3 | likelihood | order |", "| 1,000 × 64 | 1 |"
    assert validation_table(runs).splitlines()[2:] == [
        f"{task} ours | lr 0.003, dropout 0.25 {length} 2.00 | 3.00 | – |",
        f"{task} paper | lr 0.1, temperature 0.5 {length} 1.00 | 1.00 | – |",
    ]
    assert [row[7] for row in rows(sorting_table(runs))] == ["50.00"]
    assert validation_table(runs[:1]) == "No run is recorded yet.\n"


PROTOCOL: dict[str, Any] = {"places": 4, "network": "wide", "batch": 100, "jitter": 0.0}
PROTOCOL |= {"lr": 10**-3.5, "cosine": False}


def test_the_protocol_has_a_table_of_its_own() -> None:
    """Of 8 and 10 % wrong: 92 and 90 % right, mean 91, deviation √2 = 1.41."""
    finals = [
        {"error": 0.07, "strict": 0.08, "elements": 0.02},
        {"error": 0.09, "strict": 0.10, "elements": 0.04},
    ]
    runs = [
        make_sorting([0.9, 0.1], key="a", seed=seed, size=9, other={"final": final}, **PROTOCOL)
        for seed, final in enumerate(finals)
    ]
    runs.append(make_sorting([0.2], key="b", method="odd_even", size=9, **PROTOCOL))
    runs.append(make_sorting([0.2], key="c", method="odd_even", size=11, **PROTOCOL))
    runs.append(make_sorting([0.3], key="d", split="validation", **PROTOCOL))
    head, _, *table = protocol_table(runs).splitlines()
    assert table == [
        "| 9 | likelihood | 91.00 ± 1.41 | 97.00 ± 1.41 | 1,000 × 100, 1 s | – | 2 | – |",
        "| 9 | odd-even network | 80.00 | – | 1,000 × 100, 0 s | – | 1 | – |",
        "| 11 | odd-even network | 80.00 | – | 1,000 × 100, 0 s | – | 1 | – |",
    ]
    assert head.count("|") == table[0].count("|")
    assert sorting_table(runs) == "No run is recorded yet.\n"
    assert protocol_table([make_sorting([0.1])]) == "No run is recorded yet.\n"
    # What is not the protocol's is told.
    turned: dict[str, Any] = PROTOCOL | {"jitter": 1.0}
    runs = [
        make_sorting([0.1], key="a", size=3, **PROTOCOL),
        make_sorting([0.1], key="b", size=3, **turned),
        make_sorting([0.1], key="c", size=5, preset="paper", **PROTOCOL),
    ]
    words = ["likelihood, jitter 0", "likelihood", "likelihood, paper's settings"]
    assert [row[1] for row in rows(protocol_table(runs))] == words


def test_runs_by_the_protocol_are_compared_after_as_many_steps_too() -> None:
    """The shortest on as many numbers has 200; of another number of them, 100."""
    runs = [
        make_sorting([0.9, 0.5, 0.4, 0.2], key="a", size=9, steps=300, **PROTOCOL),
        make_sorting([0.9, 0.6, 0.3], key="b", size=9, steps=200, method="odd_even", **PROTOCOL),
        make_sorting([0.9, 0.8], key="c", size=5, steps=100, **PROTOCOL),
    ]
    assert [(row[0], row[2], row[5]) for row in rows(protocol_table(runs))] == [
        ("5", "20.00", "20.00"),
        ("9", "80.00", "60.00"),
        ("9", "70.00", "70.00"),
    ]


def test_short_runs_on_test_digits_are_a_field() -> None:
    """On a page that has a place for them; elsewhere they are results like others."""
    runs = [
        make_sorting([0.5, 0.2], key="a", steps=2000, other={"device": "some GPU"}),
        make_sorting([0.5, 0.3], key="b", steps=2000, method="projection", loss="ranks"),
        make_sorting([0.5, 0.1], key="c", steps=3000),
        make_sorting([0.5, 0.4], key="d", steps=2000, split="validation"),
        make_sorting([0.5, 0.4], key="e", steps=2000, **PROTOCOL),
    ]
    assert field_table(runs).splitlines()[2:] == [
        "| 16 | 3 | likelihood | order | 2,000 × 64 | 1 | 20.00 | 20.00 | – | – | some GPU |",
        "| 16 | 3 | projected ranks | ranks | 2,000 × 64 | 1 | 30.00 | 30.00 | – | – | – |",
    ]
    assert len(rows(sorting_table(runs))) == 3
    assert len(rows(sorting_table(runs, 3000))) == 1
    begin, end = marks()
    assert fill_sorting(f"{begin}{end}", runs) == f"{begin}\n\n{sorting_table(runs)}\n{end}"


def timed(ms: float | None, key: str, seed: int = 0, at_once: int = 1, **others: Any) -> dict:
    step = {"step_ms": ms, "at_once": at_once}
    setting: dict[str, Any] = {"split": "validation", "steps": 600} | others
    return make_sorting([0.9], key=key, seed=seed, other=step, **setting)


def test_steps_of_short_runs_are_timed() -> None:
    runs = [
        timed(3.0, "b", method="odd_even"),
        timed(2.0, "a"),
        timed(4.0, "a", seed=1),
        timed(9.0, "a", seed=2, at_once=3),
        timed(9.0, "c", method="sampled", at_once=2),
        timed(None, "d", method="exact"),
        timed(9.0, "e", steps=5000),
        timed(9.0, "f", split="test"),
    ]
    assert rows(speed_table(runs)) == [
        ["16", "3", "likelihood", "order", "ours", "64", "2", "3", "1.00 ×"],
        ["16", "3", "exact quicksort", "permutation", "ours", "64", "1", "–", "–"],
        ["16", "3", "odd-even network", "permutation", "ours", "64", "1", "3", "1.00 ×"],
    ]
    assert rows(speed_table(runs[:1]))[0][-1] == "–"
    assert [row[6] for row in rows(validation_table(runs))] == ["5,000 × 64"]
    small = timed(1.0, "g", data="digits", places=1)
    assert len(rows(validation_table([small]))) == 1
    assert speed_table([small]) == "No run is recorded yet.\n"
