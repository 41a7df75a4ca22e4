"""`sparsewire figures`: what it draws from which records, and what it says."""

import json
from pathlib import Path
from typing import Any

import pytest
from lab.tests.identity.runs import make_run, save_wiring

from sparsewire_lab.cli.figures import draw_all
from sparsewire_lab.cli.main import main


def write(path: Path, *runs: dict[str, Any]) -> Path:
    lines = [
        json.dumps({"key": f"{number}", "steps": 1000, **run}) for number, run in enumerate(runs)
    ]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_every_figure_that_there_are_runs_for_is_drawn(tmp_path: Path) -> None:
    save_wiring(tmp_path / "wires.npz", sizes=(32, 32))
    shown = make_run([2.0, 0.0], size=32) | {"wiring": "wires.npz"}
    band = make_run([9.0, 8.0], size=64, method="rewire", target="band")
    file = write(tmp_path / "r.jsonl", shown, make_run([2.0, 0.0], size=64, method="rewire"), band)
    drawn = draw_all(file, tmp_path / "figures")
    names = ["errors.png", "rewire.png", "scaling.png", "32-matrix.png", "32-wiring.png"]
    assert [path.name for path in drawn] == [f"identity-{name}" for name in names] + [
        "identity-32-wiring.gif"
    ]
    assert all(path.stat().st_size > 1000 for path in drawn)


def test_wirings_that_are_not_there_are_passed_over(tmp_path: Path) -> None:
    file = write(tmp_path / "r.jsonl", make_run([2.0, 0.0]) | {"wiring": "gone.npz"})
    assert [path.name for path in draw_all(file, tmp_path)] == ["identity-errors.png"]


def test_the_command_says_where_figures_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_wiring(tmp_path / "wires.npz")
    file = write(tmp_path / "r.jsonl", make_run([2.0, 0.0]) | {"wiring": "wires.npz"})
    assert main(["figures", str(file), "--no-animation"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [Path(line.removeprefix("figure: ")).exists() for line in said] == [True] * 3
    assert not list(tmp_path.rglob("*.gif"))


def test_without_runs_it_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["figures", str(write(tmp_path / "r.jsonl"))]) == 1
    assert "holds no runs to draw" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["nowhere.jsonl"], ["{file}", "--page", "nowhere.md"]])
def test_missing_files_are_named(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "r.jsonl", make_run([2.0, 0.0]))
    with pytest.raises(SystemExit) as stopped:
        main(["figures", *(word.format(file=file) for word in words)])
    assert stopped.value.code == 2
    assert "nowhere" in capsys.readouterr().err
