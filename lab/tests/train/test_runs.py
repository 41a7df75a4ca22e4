"""Runs: each once, recorded with where it is from, summed up, and never lost by accident."""

import json
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lab.tests.train.toy import Toy, ToyTrial, assert_identical, finished, full_disk, without_times

from sparsewire_lab.train import records
from sparsewire_lab.train.checkpoints import Checkpoints, read_checkpoint
from sparsewire_lab.train.runs import (
    AT_ONCE_VARIABLE,
    make_fabric,
    record_path,
    run_all,
    run_folder,
    summary,
)

WORDS = ["--steps", "12", "--out", "a folder"]

# Checks of annotations sample from Python's generator, and no two runs would draw the same.
pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return Toy(out=tmp_path)


def run(*experiments: Toy, words: list[str] = WORDS, **changes: Any) -> int:
    return run_all([replace(experiment, **changes).resolved() for experiment in experiments], words)


def stop(toy: Toy, step: int, words: list[str] = WORDS, **changes: Any) -> int:
    return run(toy, words=words, stop_at=step, **changes)


def lines_of(experiment: Toy) -> list[dict[str, Any]]:
    path = record_path(experiment)
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def last_of(toy: Toy, seed: int = 0) -> Path:
    return run_folder(toy.resolved(), seed) / "last.pt"


def test_a_run_leaves_a_record_with_all_that_is_to_know(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(AT_ONCE_VARIABLE, "3")
    toy = Toy(out=tmp_path, quiet=False, seeds=(3,))
    assert run(toy) == 0
    (record,) = lines_of(toy)
    assert record["experiment"] == "toy"
    assert record["command"] == "sparsewire toy --steps 12 --out 'a folder'"
    assert record["arguments"] == toy.resolved().arguments()
    assert record["key"] == toy.resolved().key()
    assert (record["seed"], record["status"], record["problem"]) == (3, "finished", None)
    assert (record["steps"], record["processes"], record["at_once"]) == (12, 1, 3)
    assert record["commit"]
    assert record["device"]
    assert record["date"].startswith("20")
    assert record["versions"]["torch"] == torch.__version__
    assert {"python", "numpy", "sparsewire"} <= record["versions"].keys()
    assert 0 < record["seconds"] < 60
    assert 0 < record["step_ms"] < 60_000 / 12
    assert record["peak_memory"] is None
    assert record["curve"]["step"] == [0, 4, 8, 12]
    assert record["curve"]["loss"][0] is None
    assert record["final"] == {name: record["curve"][name][-1] for name in ("error", "size")}
    assert record["best"] == min(record["curve"]["error"])
    out = capsys.readouterr().out
    assert f"toy: sum, seed 3: error {record['final']['error']:.3g}, size" in out
    assert f"record: {tmp_path / 'toy.jsonl'}" in out


def concluded(monkeypatch: pytest.MonkeyPatch, **metrics: float) -> list[int]:
    """Let trials conclude with these; return the steps after which they did."""
    steps: list[int] = []

    def conclude(trial: ToyTrial) -> dict[str, float]:
        steps.append(trial.cursor.steps)
        return metrics

    monkeypatch.setattr(ToyTrial, "conclude", conclude)
    return steps


def test_what_a_run_concludes_with_is_among_its_final_metrics(
    toy: Toy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also of one that was stopped, when it ends."""
    steps = concluded(monkeypatch, slow=0.25)
    stop(toy, 6)
    assert steps == []
    assert run(toy, seeds=(0, 1), quiet=False, resume=True) == 0
    assert steps == [12, 12]
    for record in lines_of(toy):
        last = {name: record["curve"][name][-1] for name in ("error", "size")}
        assert record["final"] == {**last, "slow": 0.25}
        assert "slow" not in record["curve"]
        assert record["at_once"] == 1
    out = capsys.readouterr().out
    assert "slow 0.25 after 12 steps" in out
    assert "slow 0.25 ± 0" in out  # among the means over seeds


def test_a_run_computes_what_its_training_does_and_records_its_wiring(tmp_path: Path) -> None:
    toy = Toy(out=tmp_path / "here")
    run(toy)
    want = finished(toy, tmp_path / "training")
    assert_identical(without_times(read_checkpoint(last_of(toy))), without_times(want))
    (tmp_path / "here").rename(tmp_path / "there")
    moved = replace(toy, out=tmp_path / "there")
    (record,) = lines_of(moved)
    with np.load(record_path(moved).parent / record["wiring"]) as arrays:
        assert set(arrays) == {"step", "weight", "shape"}
        assert arrays["step"].tolist() == [0, 4, 8, 12]
        assert arrays["weight"].shape == (4, 1, 4)
        assert arrays["shape"].tolist() == [1, 4]


def test_a_finished_run_is_not_repeated(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert run(toy) == 0
        assert capsys.readouterr() == ("", "")  # it is quiet
    before = {path: path.stat().st_mtime_ns for path in toy.out.rglob("*")}
    for changes in ({}, {"resume": True, "checkpoint_every": 3}):
        assert run(toy, quiet=False, **changes) == 0
        out = capsys.readouterr().out
        assert f"toy: sum, seed 0: finished already, in {record_path(toy)} (--again" in out
        assert "toy: sum: error" in out
    assert {path: path.stat().st_mtime_ns for path in toy.out.rglob("*")} == before


def test_again_repeats_a_finished_run_and_can_be_stopped_and_continued(toy: Toy) -> None:
    words = [*WORDS, "--again"]
    run(toy)
    assert run(toy, words=words, again=True) == 0
    first, second = lines_of(toy)
    assert second["curve"]["error"] == first["curve"]["error"]
    assert second["date"] >= first["date"]
    (newest,) = records.read(record_path(toy))
    assert newest["command"].endswith("--again")
    stop(toy, 1, words=words, again=True)
    last = last_of(toy)
    assert [path.name for path in last.parent.glob("*.pt")] == ["last.pt"]  # none of the run before
    assert read_checkpoint(last)["step"] == 1
    assert run(toy, resume=True) == 0
    assert read_checkpoint(last)["step"] == 12
    assert len(lines_of(toy)) == 3
    stop(toy, 6, seeds=(1,))  # an unfinished one is repeated from the beginning
    assert run(toy, again=True, seeds=(1,)) == 0
    assert lines_of(toy)[-1]["curve"]["step"] == [0, 4, 8, 12]


def test_new_seeds_are_added_to_those_that_are_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(Toy(out=tmp_path))
    toy = Toy(out=tmp_path, seeds=(0, 1, 2), quiet=False)
    assert run(toy) == 0
    found = lines_of(toy)
    assert [record["seed"] for record in found] == [0, 1, 2]
    errors = [record["final"]["error"] for record in found]
    assert len(set(errors)) == 3
    mean, deviation = np.mean(errors), np.std(errors, ddof=1)
    out = capsys.readouterr().out
    assert f"toy: sum: error {mean:.3g} ± {deviation:.2g}, size" in out
    assert "(3 seeds, " in out


@pytest.mark.parametrize(
    ("number", "status", "name"),
    [(signal.SIGINT, 130, "Ctrl-C"), (signal.SIGTERM, 143, "SIGTERM")],
)
@pytest.mark.parametrize("more", [[], ["--again"], ["--resume"]])
def test_a_stopped_run_says_how_to_continue(
    more: list[str],
    number: int,
    status: int,
    name: str,
    toy: Toy,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And not to begin again, nor to resume twice."""
    words = [*WORDS, *more, "--quiet"]
    assert stop(toy, 6, words=words, stop_with=number, seeds=(0, 1)) == status
    assert capsys.readouterr().err == (
        f"{name}: stopped and saved after step 6\n"
        "to continue: sparsewire toy --steps 12 --out 'a folder' --quiet --resume\n"
    )
    assert lines_of(toy) == []


def test_a_second_ctrl_c_ends_at_once_and_says_how_to_continue(
    toy: Toy, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def press_twice(_: ToyTrial) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(ToyTrial, "after_step", press_twice)
    assert run(toy) == 130
    assert capsys.readouterr().err.endswith(
        "stopped at once, without saving\n"
        "to continue: sparsewire toy --steps 12 --out 'a folder' --resume\n"
    )
    assert not list(toy.out.rglob("*.pt"))


def test_an_unfinished_run_is_not_touched_before_somebody_says_what_to_do(
    toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    stop(toy, 6, seeds=(5,))
    before = {path: path.read_bytes() for path in toy.out.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert run(toy, seeds=(4, 5)) == 1  # seed 4 has not begun
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    for words in (str(run_folder(toy.resolved(), 5)), "--resume", "--again"):
        assert words in error
    assert before == {path: path.read_bytes() for path in toy.out.rglob("*") if path.is_file()}


def test_a_signal_that_comes_too_late_stops_before_the_next_seed(
    toy: Toy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save = Checkpoints.save

    def raise_signal(self: Checkpoints, state: dict[str, Any]) -> None:
        save(self, state)
        if state["step"] == 12:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Checkpoints, "save", raise_signal)
    assert run(toy, seeds=(0, 1)) == 128 + signal.SIGTERM
    assert [(record["seed"], record["status"]) for record in lines_of(toy)] == [(0, "finished")]
    assert "--resume" in capsys.readouterr().err


def test_damaged_checkpoints_alone_end_it(toy: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    stop(toy, 3)
    last_of(toy).write_bytes(b"")
    assert run(toy, resume=True) == 1
    want = f"sparsewire toy: error: no checkpoint can be used: {last_of(toy)}"
    assert want in capsys.readouterr().err
    assert lines_of(toy) == []


def test_a_diverged_run_is_recorded_and_the_exit_status_says_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    concluding = concluded(monkeypatch, slow=0.25)
    toy = Toy(out=tmp_path, nan_at=(6,), seeds=(0, 1))
    for _ in range(2):
        assert run(toy) == 1
    first, second = lines_of(toy)
    assert (first["seed"], second["seed"]) == (0, 1)
    assert first["status"] == second["status"] == "diverged"
    want = "the loss was NaN or infinite in step 6 of seed 1; the last good checkpoint is "
    assert second["problem"] == f"{want}{last_of(toy, 1)}"
    assert f"toy: sum, seed 1: {want}" in capsys.readouterr().err
    assert first["steps"] == 6
    assert first["curve"]["step"] == [0, 4]
    assert first["step_ms"] > 0  # of the steps before
    assert first["wiring"] is None
    assert concluding == []
    assert first["final"].keys() == {"error", "size"}


@dataclass(frozen=True, kw_only=True)
class FragileToy(Toy):
    """Diverges with large learning rates."""

    def build(self, seed: int, device: torch.device) -> ToyTrial:
        return ToyTrial(replace(self, nan_at=(3,) if self.lr == 1.0 else ()), seed, device)


def test_a_sweep_goes_on_after_a_setting_that_diverged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toy = FragileToy(out=tmp_path, rates=(1.0, 0.01, 0.1), quiet=False, seeds=(0, 1))
    assert run(*toy.settings()) == 0  # pyright: ignore[reportArgumentType]
    want = [(1.0, "diverged"), (0.01, "finished"), (0.1, "finished")]
    ended = [(record["arguments"]["lr"], record["status"]) for record in lines_of(toy)]
    assert ended == [pair for pair in want for _ in toy.seeds]
    lines = [line for line in capsys.readouterr().out.splitlines() if " lr " in line]
    assert lines[-1].startswith("toy: sum lr 1: ")
    assert lines[-1].endswith(", 2 diverged)")
    means = [float(line.split("error ")[1].split(" ±")[0]) for line in lines[:2]]
    assert means == sorted(means)


def test_a_table_leaves_out_what_was_not_run_and_without_snapshots_there_is_no_wiring(
    toy: Toy,
) -> None:
    assert summary([toy]) == ""
    toy = replace(toy, frames=False)
    run(toy)
    assert summary([toy.resolved()]).startswith("toy: sum: error ")
    assert lines_of(toy)[0]["wiring"] is None
    assert not list(toy.out.rglob("*.npz"))


def test_settings_and_seeds_have_folders_of_their_own(toy: Toy) -> None:
    folders = {run_folder(toy, 0), run_folder(toy, 1), run_folder(replace(toy, lr=0.5), 0)}
    assert len(folders) == 3
    assert run_folder(replace(toy, quiet=False), 0) in folders
    assert run_folder(toy, 1).relative_to(toy.out).as_posix() == f"toy/toy--sum-{toy.key()}/seed-1"


def test_a_folder_that_cannot_be_made_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").write_text("a file, where a folder should be")
    assert run(Toy(out=tmp_path / "out")) == 1
    error = capsys.readouterr().err
    assert error.startswith("sparsewire toy: error: ")
    first, second = error.splitlines()
    assert first.endswith(f"{tmp_path / 'out'} must be a folder to write to: File exists")
    assert second == "the same command with --debug shows where it happened"


def test_a_record_that_found_no_room_is_written_later(
    toy: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    limit = 100_000
    record_path(toy).write_text("x" * limit)
    with full_disk(limit):
        assert run(toy) == 1
    assert f"error: {record_path(toy)} could not be added to" in capsys.readouterr().err
    assert records.read_all(record_path(toy))[0] == []
    assert run(toy) == 1
    assert "toy.jsonl, line 1: skipped, it is cut off, or not JSON\n" in capsys.readouterr().err
    assert run(toy, resume=True) == 0
    (record,) = records.read_all(record_path(toy))[0]
    assert (record["status"], record["curve"]["step"]) == ("finished", [0, 4, 8, 12])


def test_the_fabric_has_the_device_and_the_precision_that_were_asked_for() -> None:
    fabric = make_fabric(Toy(precision="bf16"))
    assert (fabric.device.type, fabric.world_size) == ("cpu", 1)
    assert fabric._precision.precision == "bf16-mixed"
