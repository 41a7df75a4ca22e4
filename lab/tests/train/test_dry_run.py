"""A dry run: what it says a command would do, and that it leaves nothing behind."""

import dataclasses
import os
import re
from pathlib import Path

import pytest
import torch
from lab.tests.train.toy import Toy, ToyTrial, finished

from sparsewire_lab.cli.main import main
from sparsewire_lab.train import dry_run
from sparsewire_lab.train.dry_run import (
    Cost,
    Plan,
    duration,
    evaluations,
    make_dry_run,
    seconds_of,
)
from sparsewire_lab.train.runs import run_all, run_folder

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time no longer than it takes to know that something is timed."""
    monkeypatch.setattr(dry_run, "_SECONDS", 0.0)
    monkeypatch.setenv("COLUMNS", "120")


def shown(capsys: pytest.CaptureFixture[str], *toys: Toy) -> dict[str, str]:
    """What is said of toys."""
    capsys.readouterr()
    assert make_dry_run([toy.resolved() for toy in toys], ["--dry-run"]) == 0
    return parts(capsys.readouterr().out)


def parts(said: str) -> dict[str, str]:
    """What is said of each thing, in one line each."""
    found: dict[str, str] = {}
    name = ""
    for line in said.splitlines()[1:-2]:
        name = line[:13].strip() or name
        found[name] = f"{found.get(name, '')} {line[13:]}".strip()
    return found


def files_in(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_nothing_is_left_behind_and_all_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toy = Toy(out=tmp_path / "out", seeds=(3, 4), tensorboard=True, figures=True)
    told = shown(capsys, toy)
    assert list(tmp_path.iterdir()) == []
    assert told["setting"].startswith("toy: sum drop 0.3, noise 0.1, ")
    assert "steps 12, batch 8, lr 0.05, device cpu, " in told["setting"]
    assert "until" not in told["setting"]  # it is open
    assert told["runs"] == "seeds 3, 4: 12 steps"
    assert told["steps"] == "24 in 2 runs; evaluated every 4, saved every 5"
    assert told["device"].startswith("cpu: ")
    assert told["memory"] == (
        "model 20 bytes, 5 trained numbers; 88 bytes with gradients and the optimiser's state"
    )
    assert re.match(
        r"about [\d.]+ m?s for 2 runs, one after the other: [\d.]+ m?s a step, timed "
        r"over 1, and [\d.]+ m?s an evaluation, timed once\. Compilation, ",
        told["time"],
    )
    folder = run_folder(toy.resolved(), 3)
    assert told["record"] == str(tmp_path / "out" / "toy.jsonl")
    assert told["checkpoints"] == f"{folder}/ and so on, a folder for each run"
    assert told["events"] == f"{folder}/events/"
    assert told["figures"] == f"{tmp_path / 'out' / 'figures'}/"


def test_what_is_recorded_is_skipped_and_what_stands_half_done_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toy = Toy(out=tmp_path)
    assert run_all([toy.resolved()], []) == 0
    run_all([dataclasses.replace(toy, seeds=(1,), stop_at=6).resolved()], [])
    before = files_in(tmp_path)
    toy = dataclasses.replace(toy, seeds=(0, 1, 2))
    told = shown(capsys, toy)
    assert told["runs"] == (
        "seed 0: finished already; --again would repeat it "
        "seed 1: unfinished after step 6: refused without --resume or --again "
        "seed 2: 12 steps"
    )
    assert told["steps"].startswith("12 in 1 of 3 runs; ")
    told = shown(capsys, dataclasses.replace(toy, resume=True))
    assert "seed 1: goes on after step 6 seed 2: 12 steps" in told["runs"]
    assert told["steps"].startswith("18 in 2 of 3 runs; ")
    told = shown(capsys, dataclasses.replace(toy, again=True))
    assert told["runs"] == "seeds 0, 1, 2: 12 steps"
    assert files_in(tmp_path) == before


def test_nothing_is_timed_if_nothing_is_left_to_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Since it is recorded, or its checkpoint is damaged."""
    toy = Toy(out=tmp_path, resume=True)
    monkeypatch.setattr(dry_run, "measure", None)
    run_all([dataclasses.replace(toy, stop_at=3).resolved()], [])
    last = run_folder(toy.resolved(), 0) / "last.pt"
    whole = last.read_bytes()
    last.write_bytes(b"")
    told = shown(capsys, toy)
    assert told["runs"].startswith("seed 0: would fail: no checkpoint can be used")
    assert told["time"] == "none: there is nothing to run"
    last.write_bytes(whole)
    assert run_all([toy.resolved()], []) == 0
    told = shown(capsys, toy)
    assert told["runs"] == "seed 0: finished already; --again would repeat it"
    assert told["time"] == "none: there is nothing to run"
    assert "memory" not in told


def test_settings_of_a_sweep_are_told_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toy = Toy(out=tmp_path, rates=(0.5, 0.1, 0.01), seeds=(0, 1), until=0.25)
    told = shown(capsys, *toy.settings())
    assert told["time"].endswith("; runs end earlier if they fall below 0.25.")
    assert told["events"] == told["figures"] == "none, as asked"
    assert "lr 0.5 / 0.1 / 0.01" in told["setting"]
    assert told["runs"] == "in each setting, seeds 0, 1: 12 steps"
    assert told["steps"].startswith("72 in 6 runs; ")
    run_all([dataclasses.replace(toy.settings()[1], seeds=(0,)).resolved()], [])
    told = shown(capsys, *toy.settings())
    assert told["runs"] == (
        "lr 0.5, lr 0.01: seeds 0, 1: 12 steps lr 0.1: seed 0: finished already; --again would "
        "repeat it lr 0.1: seed 1: 12 steps"
    )


def test_what_would_be_fetched_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPARSEWIRE_DATA", str(tmp_path / "data"))
    for name in ("attention", "sorting"):
        assert main([name, "--device", "cpu", "--dry-run"]) == 0
        told = parts(capsys.readouterr().out)
        home = tmp_path / "data" / "mnist"
        assert told["time"] == (
            f"not known: a run would first fetch MNIST into {home} (sparsewire data mnist does so "
            "now)"
        )
        assert main([name, "--device", "cpu", "--mnist", str(tmp_path), "--dry-run"]) == 0
        assert f"MNIST into {tmp_path} " in parts(capsys.readouterr().out)["time"]
    assert os.listdir(tmp_path) == []


EXPERIMENTS = {
    "identity": ["--size", "8", "--sweep"],
    "attention": ["--data", "digits", "--size", "4", "--batch", "4"],
    "sorting": ["--data", "digits", "--size", "2", "--places", "1", "--batch", "4"],
}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_has_a_dry_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [*EXPERIMENTS[name], "--device", "cpu", "--seeds", "0", "5"]
    assert main([name, *words, "--dry-run"]) == 0
    said = capsys.readouterr()
    told = parts(said.out)
    assert said.out.splitlines()[0] == f"sparsewire {name} {' '.join(words)} --dry-run"
    assert said.out.endswith(
        "\n\nThis was a dry run: nothing was trained to the end, nothing was written.\n"
    )
    assert said.err == "timing some steps and an evaluation …\n"
    assert "seeds 0, 5: " in told["runs"]
    assert told["time"].startswith("about ")
    assert told["record"] == f"out/{name}.jsonl"
    assert os.listdir(tmp_path) == []


def test_the_steps_that_are_timed_are_those_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all that follows a step, and the evaluation by itself, as a model is judged."""
    made: list[str] = []
    after, judge = ToyTrial.after_step, ToyTrial.evaluate

    def follow(trial: ToyTrial) -> None:
        made.append("step" if trial.model.training else "wrong")
        after(trial)

    def evaluate(trial: ToyTrial) -> dict[str, float]:
        made.append("wrong" if trial.model.training or torch.is_grad_enabled() else "evaluation")
        return judge(trial)

    monkeypatch.setattr(ToyTrial, "after_step", follow)
    monkeypatch.setattr(ToyTrial, "evaluate", evaluate)
    monkeypatch.setattr(dry_run, "_SECONDS", 60.0)
    monkeypatch.setattr(dry_run, "_MOST_STEPS", 7)
    toy = Toy(out=tmp_path).resolved()
    cost = dry_run.measure(toy, 0, dry_run.make_fabric(toy))
    assert made == ["step"] * 8 + ["evaluation"]  # the first warms up
    assert cost.steps == 7
    assert 0 < cost.step < 1
    assert 0 < cost.evaluation < 1
    assert (cost.parameters, cost.model, cost.peak) == (5, 20, None)


@pytest.mark.parametrize(
    ("steps", "every", "left", "count"),
    [(12, 4, 12, 4), (12, 5, 12, 4), (12, 4, 6, 2), (12, 4, 8, 2), (12, 4, 0, 0), (3, 10, 3, 2)],
)
def test_evaluations_are_counted(
    steps: int, every: int, left: int, count: int, tmp_path: Path
) -> None:
    """Before the first step, every so many steps, and after the last; what was made is not."""
    toy = Toy(steps=steps, evaluate_every=every)
    assert evaluations(Plan(toy, 0, "", left)) == count
    if left == steps:  # as many as a run makes
        assert len(finished(toy, tmp_path)["curve"]["step"]) == count


def test_times_are_added() -> None:
    cost = Cost(0.5, 9, 2.0, 0, 0, 0, None)
    plans = [Plan(Toy(), 0, "", 12), Plan(Toy(), 1, "", 6), Plan(Toy(), 2, "", 0)]
    assert seconds_of(plans, cost) == 0.5 * 18 + 2.0 * (4 + 2)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.00012, "0.12 ms"),
        (0.24, "240 ms"),
        (1.26, "1.3 s"),
        (59.0, "59 s"),
        (7200.0, "2 h"),
        (86400.0 * 1.04, "1 day"),
        (86400.0 * 1.5, "1.5 days"),
        (86400.0 * 12, "12 days"),
    ],
)
def test_times_are_told_as_people_would(seconds: float, told: str) -> None:
    assert duration(seconds) == told
