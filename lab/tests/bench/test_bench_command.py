"""`sparsewire bench` from its arguments to its files."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lab.tests.bench.rows import RATES, make_record
from lab.tests.bench.test_runner import Pretender

from sparsewire_lab import provenance
from sparsewire_lab.bench import worker
from sparsewire_lab.bench.record import COLUMNS, append, read
from sparsewire_lab.cli.main import main

without_gpu = pytest.mark.skipif(
    provenance.torch.cuda.is_available(), reason="there is a CUDA device"
)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--device", "tpu"], "'tpu'"),
        (["soup"], "'soup'"),
        (["--sizes", "8", "few"], "few"),
        (["--sizes", "1"], "--sizes must be between 2 and 10000000; got 1"),
        (["--threads", "0"], "--threads must be above 0; got 0"),
        (["--limit", "-1"], "--limit must be above 0; got -1.0"),
        (["--limit", "nan"], "--limit must be above 0; got nan"),
        (["--record", "results.txt"], "--record must be a .csv file; got results.txt"),
        (["--page", "page.html"], "--page must be a .md file; got page.html"),
        (["--draw"], "--draw needs --page"),
        (["--draw", "--page", "p.md", "--record", "none.csv"], "none.csv must be a record of"),
        (["--merge", "none.csv"], "none.csv must be a record"),
        (["--out", "other"], "other/bench.csv must be a record of sparsewire bench"),
        (["--colour"], "--colour"),
        pytest.param(["--device", "cuda"], "--device cuda needs a CUDA device", marks=without_gpu),
    ],
)
def test_bad_arguments_are_named(
    words: list[str],
    complaint: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    other = tmp_path / "other" / "bench.csv"
    other.parent.mkdir()
    other.write_text("a,b\n")
    assert main(["bench", *words]) == 2
    assert complaint in capsys.readouterr().err
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [other]
    assert other.read_text() == "a,b\n"


def test_a_small_run_from_end_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPARSEWIRE_COMMIT", "a commit")
    words = ["spread", "--quick", "--device", "cpu", "--sizes", "4", "8", "16"]
    assert main(["bench", *words, "--json", "--threads", "1", "--page", "rows.md"]) == 0
    out, err = capsys.readouterr()
    printed = [json.loads(line) for line in out.splitlines()]
    assert len(printed) == 3 + 3 * 4
    rows = read(tmp_path / "out" / "bench.csv")
    for row, line in zip(rows, printed, strict=True):
        assert tuple(line) == COLUMNS
        assert row["status"] in ("ok", "skipped"), row
        assert (row["commit"], row["plan"]) == ("a commit", "quick")
        assert row["date"] == rows[0]["date"]
        assert row["torch"] == provenance.torch.__version__
        if row["case"] == "ceilings":
            assert row["rate"] > 0
        elif row["status"] == "ok":
            for column in ("ms_forward", "ms_forward_backward", "floor_ms", "near_floor_ms"):
                assert row[column] > 0, (row["engine"], column)
            assert row["error"] < 1e-4
            assert row["ratio_to_reference"] > 0
    assert "[ 1/15] ceilings copy" in err
    files = {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()}
    assert files == {"out/bench.csv", "rows.md", "images/growth.png"}
    assert "### `spread`" in (tmp_path / "rows.md").read_text()
    assert (tmp_path / "images" / "growth.png").stat().st_size > 5000


@pytest.fixture
def pretend_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """Run the command in an empty folder, with fixed times by engine."""
    monkeypatch.chdir(tmp_path)

    def run(answers: dict[str, Any], *words: str) -> int:
        monkeypatch.setattr(worker, "Worker", lambda setting: Pretender(answers, []))
        return main(["bench", *(words or ["spread"]), "--device", "cpu", "--sizes", "8"])

    return run


TIMES = {"reference": 3.0, "plain": 2.0, "chunked": 2.0, "auto": 1.0, "keops": 9.0}
RECORD = Path("out/bench.csv")


def test_a_run_leaves_a_clone_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pretend_run: Callable[..., int]
) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / ".gitignore").write_text("out/\n")
    append(tmp_path / "results" / "bench.csv", make_record())
    monkeypatch.setattr(provenance, "clone", lambda: tmp_path)
    subprocess.run(["git", "init", "-q"], check=True)
    subprocess.run(["git", "add", "."], check=True)

    def changed() -> list[str]:
        """Files that differ from those that were added, and new ones."""
        words = ["git", "ls-files", "--modified", "--others", "--exclude-standard"]
        return sorted(subprocess.check_output(words, text=True).split())

    for words in ([], ["--quick", "spread"]):
        assert pretend_run(TIMES, *words) == 0
        assert changed() == []
    page, figure, record = "docs/benchmarks.md", "docs/images/growth.png", "results/bench.csv"
    assert pretend_run(TIMES, "spread", "--record", record, "--page", page) == 0
    assert changed() == [page, figure, record]
    text = Path(page).read_text()
    assert f"from its record, `{record}`" in text.replace("\n", " ")


def test_an_interrupt_leaves_the_rows_so_far(
    pretend_run: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(self: Any, case: Any, seconds: float) -> Any:
        if case.engine == "chunked":
            raise KeyboardInterrupt
        return perform(self, case, seconds)

    perform = Pretender.perform
    monkeypatch.setattr(Pretender, "perform", interrupted)
    assert pretend_run(TIMES) == 130
    assert [row["engine"] for row in read(RECORD)] == [*RATES, "reference", "plain"]
    out, err = capsys.readouterr()
    assert "interrupted: 5 of 8 rows are recorded" in err
    assert f"record: {RECORD}" in out


def test_runs_append_to_the_record_and_only_failures_of_ours_are_in_the_status(
    pretend_run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    failures = [{}, {"keops": "no compiler"}, {"auto": "broken"}]
    for times, (failed, status) in enumerate(zip(failures, (0, 0, 1), strict=True), start=1):
        assert pretend_run(TIMES | failed) == status
        out, err = capsys.readouterr()
        assert out == f"record: {RECORD}\n"
        assert ("[8/8] spread n=8 keops eager … 9 ms, 3.00 × reference" in err) == (times != 2)
        assert len(read(RECORD)) == times * 8
    assert {row["status"] for row in read(RECORD)} == {"ok", "failed"}


def test_drawing_and_merging_measure_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker, "Worker", None)
    append(tmp_path / "other.csv", make_record())
    record, page = tmp_path / "r.csv", tmp_path / "r.md"
    words = ["--record", str(record), "--page", str(page)]
    assert main(["bench", "--merge", str(tmp_path / "other.csv"), *words]) == 0
    assert f"10 rows added to {record}" in capsys.readouterr().out
    text = page.read_text()
    page.unlink()
    assert main(["bench", "--draw", *words]) == 0
    assert page.read_text() == text
    figure = tmp_path / "images" / "growth.png"
    assert f"figure: {figure}" in capsys.readouterr().out
    assert figure.stat().st_size > 5000


def test_the_commit_is_from_git_or_the_environment_or_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARSEWIRE_COMMIT", raising=False)
    assert provenance.commit(tmp_path) == "unknown"
    monkeypatch.setenv("PATH", "")
    assert provenance.commit(tmp_path) == "unknown"
    monkeypatch.setenv("SPARSEWIRE_COMMIT", "from elsewhere")
    assert provenance.commit(tmp_path) == "from elsewhere"
