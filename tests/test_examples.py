"""The examples run from start to end, in any folder, and leave what they promise."""

import json
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


def test_a_sparse_model_trains_and_is_recorded(tmp_path: Path) -> None:
    names = ["ours", "random mask", "sampled, mixed", "sampled, price"]
    words = ["--steps", "20", "--rates", "0.01", "--out", "rows.jsonl", "--methods", *names]
    result = run("sparse_mlp.py", *words, folder=tmp_path)
    assert result.returncode == 0, result.stderr
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["method"] for row in rows] == names
    assert all(row["evaluated_loss"] < 2.25 for row in rows[:2])
    assert rows[0]["trained_loss"] == rows[0]["evaluated_loss"]
    assert {"command", "commit", "device", "torch", "seed"} <= rows[0].keys()


def test_tables_of_the_page_are_those_of_its_record(tmp_path: Path) -> None:
    record = EXAMPLES.parent / "results" / "sparse_mlp.jsonl"
    result = run("sparse_mlp.py", "--table", str(record), folder=tmp_path)
    assert result.returncode == 0, result.stderr
    page = (EXAMPLES.parent / "docs" / "sparse-layers.md").read_text()
    tables = result.stdout.strip().split("\n\n")
    assert len(tables) == 2
    assert all(table in page for table in tables)


def test_layers_are_timed_and_recorded(tmp_path: Path) -> None:
    result = run("sparse_speed.py", "--seconds", "0", "--out", "rows.jsonl", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert {"nn.Linear", "SparseLinear", "free", "frozen"} <= {row["layer"] for row in rows}
    assert all(row["ms_forward_backward"] > 0 and row["commit"] for row in rows)


def test_bad_arguments_are_named(tmp_path: Path) -> None:
    result = run("constraints.py", "--steps", "many", folder=tmp_path)
    assert result.returncode == 2
    assert "--steps: invalid int value: 'many'" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_soft_ranks_are_drawn(tmp_path: Path) -> None:
    result = run("soft_ranks.py", str(tmp_path), folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "soft-ranks.png").stat().st_size > 500
