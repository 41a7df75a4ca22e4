"""`sparsewire figures` with records of the sorting experiment: what is drawn, of which run."""

import json
from pathlib import Path
from typing import Any

import pytest
from lab.tests.sorting.sorting_runs import make_sorting, save_keys

from sparsewire_lab.cli import figures as command
from sparsewire_lab.cli.main import main
from sparsewire_lab.figures.pages import BEGIN, END


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """What would be drawn: names of figures, and keys of records or names of files."""
    seen: list[tuple[str, Any]] = []

    def note(source: Any, path: Path) -> Path:
        keys = [run["key"] for run in source] if isinstance(source, list) else source.name
        seen.append((path.name, keys))
        return path

    for name in ("draw_sorting_errors", "draw_keys", "draw_steps"):
        monkeypatch.setattr(command, name, note)
    return seen


def write(path: Path, *runs: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(run) + "\n" for run in runs))
    return path


def kept(path: Path, name: str, date: str = "2026-01-01", **others: Any) -> dict[str, Any]:
    """A run that left a file."""
    save_keys(path / name)
    return make_sorting([0.9, 0.1], key=name, other={"wiring": name, "date": date}, **others)


def test_every_figure_that_there_are_runs_for_is_drawn(tmp_path: Path) -> None:
    save_keys(tmp_path / "peer.npz", halves=None, images=None)
    peer = make_sorting([0.9, 0.1], key="p", size=8, method="softsort")
    file = write(
        tmp_path / "r.jsonl",
        kept(tmp_path, "ours.npz", size=4),
        kept(tmp_path, "paper.npz", size=4, method="sampled", preset="paper"),
        peer | {"wiring": "peer.npz"},
        make_sorting([0.9, 0.1], key="d", data="digits", places=1),
        make_sorting([0.9, 0.1], key="g", other={"wiring": "gone.npz"}),
    )
    drawn = command.draw_all(file, tmp_path / "figures")
    assert [path.name for path in drawn] == [
        "sorting-errors-1-digits.png",
        "sorting-errors-3.png",
        "sorting-4x3-keys.png",
        "sorting-4x3-steps.png",
        "sorting-4x3-paper-keys.png",
        "sorting-4x3-paper-steps.png",
        "sorting-8x3-keys.png",
    ]
    assert all(path.stat().st_size > 1000 for path in drawn)


def test_curves_are_those_of_the_test_where_there_are_any(
    tmp_path: Path, calls: list[tuple[str, Any]]
) -> None:
    file = write(
        tmp_path / "r.jsonl",
        make_sorting([0.9, 0.1], key="tried", split="validation"),
        make_sorting([0.9, 0.1], key="tested"),
        make_sorting([0.9, 0.1], key="tested", seed=1, other={"status": "diverged"}),
        make_sorting([0.9, 0.1], key="tried, 4", split="validation", places=4),
        make_sorting([0.9, 0.1], key="lost", places=1, other={"status": "diverged"}),
    )
    command.draw_all(file, tmp_path)
    assert calls == [
        ("sorting-errors-3.png", ["tested", "tested"]),
        ("sorting-errors-4.png", ["tried, 4"]),
    ]


def test_one_setting_is_drawn_for_each_name(tmp_path: Path, calls: list[tuple[str, Any]]) -> None:
    """What was tested, by our method, for longest, at last."""
    tried = kept(tmp_path, "tried.npz", "2026-09-09", split="validation")
    exact = kept(tmp_path, "exact.npz", "2026-09-09", method="exact")
    peer = kept(tmp_path, "peer.npz", "2026-09-09", method="odd_even")
    old = kept(tmp_path, "old.npz", "2026-01-02", lr=0.1)
    new = kept(tmp_path, "new.npz", "2026-01-03", lr=0.2)
    short = kept(tmp_path, "short.npz", "2026-01-04", steps=100)
    every = [tried, exact, peer, old, new, short]
    for order in (every, every[::-1]):
        calls.clear()
        command.draw_all(write(tmp_path / "r.jsonl", *order), tmp_path, animation=False)
        assert calls[1:] == [
            ("sorting-16x3-keys.png", "new.npz"),
            ("sorting-16x3-steps.png", "new.npz"),
        ]


def test_of_the_seeds_the_lowest_is_drawn(tmp_path: Path, calls: list[tuple[str, Any]]) -> None:
    runs = [
        kept(tmp_path, name) | {"key": "a", "seed": seed}
        for seed, name in ((2, "c.npz"), (1, "b.npz"), (0, "a.npz"))
    ]
    runs[2]["status"] = "diverged"
    command.draw_all(write(tmp_path / "r.jsonl", *runs), tmp_path)
    assert [source for _, source in calls[1:]] == ["b.npz"] * 2


def test_the_page_has_the_table_of_its_experiment(
    tmp_path: Path, calls: list[tuple[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN}\n{END}\n")
    file = write(tmp_path / "r.jsonl", make_sorting([0.9, 0.0123]))
    assert main(["figures", str(file), "--page", str(page)]) == 0
    assert "| likelihood | order | ours | 1,000 × 64, 1 s | 1 | 1.23 |" in page.read_text()
    said = capsys.readouterr().out
    assert f"table: {page}" in said
    assert "sorting-errors-3.png" in said
    assert len(calls) == 1
