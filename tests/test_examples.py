"""The examples run from start to end, in any folder, and leave what they promise."""

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def run(name: str, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_example_runs(tmp_path: Path) -> None:
    result = run("constraints.py", "--steps", "3", "--out", "results", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    (made,) = (tmp_path / "results").iterdir()
    assert made.name == "constraints.png"
    assert made.stat().st_size > 500
    assert str(made.relative_to(tmp_path)) in result.stdout


def test_bad_arguments_are_named(tmp_path: Path) -> None:
    result = run("constraints.py", "--steps", "many", folder=tmp_path)
    assert result.returncode == 2
    assert "--steps: invalid int value: 'many'" in result.stderr
    assert list(tmp_path.iterdir()) == []
