"""`sparsewire figures` with records of the attention experiment: what is drawn, of which run."""

import json
from pathlib import Path
from typing import Any

import pytest
from lab.tests.attention.attention_runs import make_attention, save_looks
from lab.tests.identity.runs import make_run

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

    for name in ("draw_attention_errors", "draw_glimpses", "draw_boxes", "animate_boxes"):
        monkeypatch.setattr(command, name, note)
    return seen


def write(path: Path, *runs: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(run) + "\n" for run in runs))
    return path


def looked(path: Path, name: str, date: str = "2026-01-01", **others: Any) -> dict[str, Any]:
    """A run that left a file, which is not read here."""
    (path / name).touch()
    return make_attention([0.9, 0.1], key=name, other={"wiring": name, "date": date}, **others)


def test_every_figure_that_there_are_runs_for_is_drawn(tmp_path: Path) -> None:
    save_looks(tmp_path / "looks.npz", boxes=2)
    shown = make_attention([0.9, 0.1], glimpses=2, size=5, canvas=60, other={"wiring": "looks.npz"})
    file = write(tmp_path / "r.jsonl", shown, make_attention([0.9, 0.1], key="b", model="convnet"))
    drawn = command.draw_all(file, tmp_path / "figures")
    assert [path.name for path in drawn] == [
        "attention-errors-60.png",
        "attention-errors-100.png",
        "attention-2x5-60-glimpses.png",
        "attention-2x5-60-boxes.png",
        "attention-2x5-60-boxes.gif",
    ]
    assert all(path.stat().st_size > 1000 for path in drawn)


def test_curves_are_those_of_the_test_where_there_are_any(
    tmp_path: Path, calls: list[tuple[str, Any]]
) -> None:
    file = write(
        tmp_path / "r.jsonl",
        make_attention([0.9, 0.1], key="tried", split="validation"),
        make_attention([0.9, 0.1], key="tested"),
        make_attention([0.9, 0.1], key="tested", seed=1, other={"status": "diverged"}),
        make_attention([0.9, 0.1], key="tried, 400", split="validation", canvas=400),
        make_attention([0.9, 0.1], key="lost", canvas=60, other={"status": "diverged"}),
    )
    command.draw_all(file, tmp_path)
    assert calls == [
        ("attention-errors-100.png", ["tested", "tested"]),
        ("attention-errors-400.png", ["tried, 400"]),
    ]


def test_one_setting_is_drawn_for_each_name(tmp_path: Path, calls: list[tuple[str, Any]]) -> None:
    paper = looked(tmp_path, "paper.npz", "2026-09-09", preset="paper")
    tried = looked(tmp_path, "tried.npz", "2026-09-09", split="validation")
    old = looked(tmp_path, "old.npz", "2026-01-02", region=20)
    new = looked(tmp_path, "new.npz", "2026-01-03", region=10)
    gone = make_attention([0.1], key="g", size=9, other={"wiring": "gone.npz"})
    dense = looked(tmp_path, "dense.npz", model="transformer", size=8)
    for order in ([paper, tried, old, new, gone, dense], [dense, gone, new, old, tried, paper]):
        calls.clear()
        command.draw_all(write(tmp_path / "r.jsonl", *order), tmp_path, animation=False)
        assert calls[1:] == [
            ("attention-1x32-100-glimpses.png", "new.npz"),
            ("attention-1x32-100-boxes.png", "new.npz"),
        ]


def test_of_the_seeds_the_lowest_is_drawn(tmp_path: Path, calls: list[tuple[str, Any]]) -> None:
    runs = [
        looked(tmp_path, name) | {"key": "a", "seed": seed}
        for seed, name in ((2, "c.npz"), (1, "b.npz"), (0, "a.npz"))
    ]
    runs[2]["status"] = "diverged"
    command.draw_all(write(tmp_path / "r.jsonl", *runs), tmp_path)
    assert [source for _, source in calls[1:]] == ["b.npz"] * 3


def test_the_page_has_the_table_of_its_experiment(
    tmp_path: Path, calls: list[tuple[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN}\n{END}\n")
    file = write(tmp_path / "r.jsonl", make_attention([0.9, 0.0123]))
    assert main(["figures", str(file), "--page", str(page)]) == 0
    assert "| 1.23 |" in page.read_text()
    assert "table: " in capsys.readouterr().out
    mixed = write(tmp_path / "m.jsonl", make_attention([0.1]), make_run([0.1]) | {"key": "i"})
    with pytest.raises(SystemExit):
        main(["figures", str(mixed), "--page", str(page)])
    assert "must be of one experiment" in capsys.readouterr().err
    assert len(calls) == 1
