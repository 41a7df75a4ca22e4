"""The examples run from start to end, in any folder, and leave what they promise."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def run(name: str, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("name", "words", "files"),
    [
        ("constraints.py", ["--steps", "3"], ["constraints.png"]),
    ],
)
def test_example_runs(name: str, words: list[str], files: list[str], tmp_path: Path) -> None:
    result = run(name, *words, "--out", "results", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    made = sorted((tmp_path / "results").iterdir())
    assert [path.name for path in made] == files
    for path in made:
        assert path.stat().st_size > 500
        assert str(path.relative_to(tmp_path)) in result.stdout


def test_bad_arguments_are_named(tmp_path: Path) -> None:
    result = run("constraints.py", "--steps", "many", folder=tmp_path)
    assert result.returncode == 2
    assert "--steps: invalid int value: 'many'" in result.stderr
    assert list(tmp_path.iterdir()) == []
