"""`sparsewire bench` from its arguments to its files."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lab.tests.bench.rows import RATES, make_record
from lab.tests.bench.test_runner import Pretender

import sparsewire_lab.cli.bench as command
from sparsewire_lab import provenance
from sparsewire_lab.bench.record import COLUMNS, append, read
from sparsewire_lab.cli.main import main


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--device", "tpu"], "--device: invalid choice: 'tpu'"),
        (["--only", "spread,soup"], "must be some of ceilings,spread,step,glimpse,sorting; got"),
        (["soup"], "must be one of ceilings,spread,step,glimpse,sorting; got 'soup'"),
        (["--only", ","], "must be some of ceilings,spread,step,glimpse,sorting; got ','"),
        (["--sizes", "8,few"], "must be whole numbers between 2 and 4194304"),
        (["--sizes", "1"], "must be whole numbers between 2 and 4194304"),
        (["--threads", "0"], "--threads must be at least 1; got 0"),
        (["--limit", "-1"], "--limit must be a number of seconds above 0; got -1.0"),
        (["--out", "results.txt"], "--out must name a .csv file; got results.txt"),
        (["--draw", "--out", "none.csv"], "none.csv must be a record of sparsewire bench; it is"),
        (["--merge", "none.csv", "--out", "x.csv"], "none.csv must be a record"),
        (["--colour"], "unrecognized arguments: --colour"),
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
    with pytest.raises(SystemExit) as stopped:
        main(["bench", *words])
    assert stopped.value.code == 2
    assert complaint in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(provenance.torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_gpu_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "--device", "cuda"])
    assert "--device cuda needs a CUDA device" in capsys.readouterr().err


def test_a_file_that_is_no_record_is_found_out_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.csv"
    other.write_text("a,b\n")
    with pytest.raises(SystemExit):
        main(["bench", "--out", str(other)])
    assert "must be a record of sparsewire bench" in capsys.readouterr().err
    assert other.read_text() == "a,b\n"


def test_a_small_run_from_end_to_end(tmp_path: Path) -> None:
    words = ["--quick", "--device", "cpu", "--sizes", "8,16", "--only", "spread,step"]
    words += ["--json", "--threads", "1", "--out", "rows.csv"]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "sparsewire_lab", "bench", *words],
        cwd=tmp_path,
        env=os.environ | {"SPARSEWIRE_COMMIT": "a commit"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(printed) == 3 + 2 * 4 + 2 * 3
    rows = read(tmp_path / "rows.csv")
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
    assert "[ 1/17] ceilings copy" in done.stderr
    assert {p.name for p in tmp_path.iterdir()} == {"rows.csv", "rows.md", "rows.png"}
    assert "### Training step" in (tmp_path / "rows.md").read_text()
    assert (tmp_path / "rows.png").stat().st_size > 5000


def pretend_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answers: dict[str, Any], *words: str
) -> int:
    start = lambda setting: lambda: Pretender(answers, [])  # noqa: E731
    monkeypatch.setattr(command, "start_worker", start)
    usual = ["--device", "cpu", "--only", "spread", "--sizes", "8", "--out"]
    return main(["bench", *usual, str(tmp_path / "r.csv"), *words])


TIMES = {"reference": 3.0, "plain": 2.0, "chunked": 2.0, "compiled": 1.0, "auto": 1.0, "keops": 9.0}


def test_an_interrupt_keeps_the_rows_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(self: Any, case: Any, seconds: float) -> Any:
        if case.engine == "chunked":
            raise KeyboardInterrupt
        return perform(self, case, seconds)

    perform = Pretender.perform
    monkeypatch.setattr(Pretender, "perform", interrupted)
    assert pretend_run(monkeypatch, tmp_path, TIMES) == 130
    assert [row["engine"] for row in read(tmp_path / "r.csv")] == [*RATES, "reference", "plain"]
    out, err = capsys.readouterr()
    assert "interrupted: 5 of 9 rows are kept" in err
    assert f"record: {tmp_path / 'r.csv'}" in out


def test_the_end_of_a_run_says_what_was_found_and_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pretend_run(monkeypatch, tmp_path, TIMES) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:3] == ["case", "n", "engine"]
    assert lines[-3].split()[:5] == ["spread", "8", "KeOps", "9", "3.00"]
    assert lines[-2:] == [f"record: {tmp_path / 'r.csv'}", f"page: {tmp_path / 'r.md'}"]


def test_failures_of_ours_show_in_the_status_and_those_of_peers_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pretend_run(monkeypatch, tmp_path, TIMES | {"keops": "no compiler"}) == 0
    assert pretend_run(monkeypatch, tmp_path, TIMES | {"auto": "broken"}) == 1
    assert {row["status"] for row in read(tmp_path / "r.csv")} >= {"ok", "failed"}


def test_without_matplotlib_a_run_succeeds_and_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    append(tmp_path / "r.csv", make_record())
    assert pretend_run(monkeypatch, tmp_path, TIMES) == 0
    out, err = capsys.readouterr()
    assert "pip install 'sparsewire[experiments]'" in err
    assert "figure" not in out
    assert (tmp_path / "r.md").exists()
    assert not (tmp_path / "r.png").exists()


def test_drawing_and_merging_measure_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "start_worker", None)
    append(tmp_path / "other.csv", make_record())
    words = ["--merge", str(tmp_path / "other.csv"), "--out", str(tmp_path / "r.csv")]
    assert main(["bench", *words]) == 0
    assert f"10 rows added to {tmp_path / 'r.csv'}" in capsys.readouterr().out
    assert (tmp_path / "r.png").stat().st_size > 5000
    text = (tmp_path / "r.md").read_text()
    (tmp_path / "r.md").unlink()
    assert main(["bench", "--draw", "--out", str(tmp_path / "r.csv")]) == 0
    assert (tmp_path / "r.md").read_text() == text
    assert f"figure: {tmp_path / 'r.png'}" in capsys.readouterr().out


def test_outside_of_a_clone_things_stay_in_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "clone", lambda: None)
    places = command.find_places(None)
    names = [path.name for path in places[:3]]
    assert names == ["sparsewire-bench.csv", "sparsewire-bench.md", "sparsewire-bench.png"]


def test_the_commit_is_known_from_git_or_the_environment_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARSEWIRE_COMMIT", raising=False)
    assert provenance.commit(tmp_path) == "unknown"
    monkeypatch.setenv("PATH", "")
    assert provenance.commit(tmp_path) == "unknown"
    monkeypatch.setenv("SPARSEWIRE_COMMIT", "from elsewhere")
    assert provenance.commit(tmp_path) == "from elsewhere"
