"""Arguments: what is refused, what decides a run, and what stands in a record."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from lab.tests.train.toy import Toy

from sparsewire_lab.train.options import Experiment, processes
from sparsewire_lab.train.trial import Trial


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"steps": 0}, "steps must be at least 1; got 0"),
        ({"batch": 0}, "batch must be at least 1; got 0"),
        ({"accumulate": 0}, "accumulate must be at least 1"),
        ({"evaluate_every": 0}, "evaluate_every must be at least 1"),
        ({"checkpoint_every": -5}, "checkpoint_every must be at least 1; got -5"),
        ({"lr": 0.0}, "lr must be above 0; got 0"),
        ({"lr": float("inf")}, "lr must be above 0; got inf"),
        ({"lr": float("nan")}, "lr must be above 0; got nan"),
        ({"until": 0.0}, "until must be above 0; got 0"),
        ({"until": float("nan")}, "until must be above 0; got nan"),
        ({"seeds": ()}, "seeds must be different whole numbers, at least one"),
        ({"seeds": (1, 2, 1)}, "seeds must be different whole numbers"),
        ({"seeds": (-1,)}, "seeds must be at least 0; got -1"),
        ({"device": "tpu"}, "device must be one of 'auto', 'cpu', 'cuda'; got 'tpu'"),
        ({"resume": True, "again": True}, "resume continues a run and again starts it anew"),
        ({"dry_run": True, "quiet": True}, "dry_run only shows and quiet shows nothing"),
        ({"batch": 8, "accumulate": 3}, r"batch must be divisible by accumulate × processes = 3"),
        ({"seeds": (2**32,)}, r"seeds must be below 2\*\*32"),
        *(({"batch": count}, "batch must be an integer") for count in (2.0, True, "3")),
    ],
)
def test_what_cannot_be_is_refused(arguments: Any, complaint: str) -> None:
    with pytest.raises((TypeError, ValueError), match=complaint):
        Toy(**arguments).check()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_gpu_is_named() -> None:
    with pytest.raises(ValueError, match="device must be cpu or auto: cuda was asked for"):
        Toy(device="cuda").check()


def test_processes_share_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert processes() == 1
    Toy(batch=6, accumulate=2).check()
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert processes() == 2
    with pytest.raises(ValueError, match=r"accumulate × processes = 4; got 6"):
        Toy(batch=6, accumulate=2).check()


_SWITCHES = {"tensorboard": False, "figures": False}
_SWITCHES |= dict.fromkeys(("resume", "again", "quiet", "dry_run"), True)
BOOKKEEPING = {"seeds": (1, 2), "checkpoint_every": 7, "out": Path("elsewhere"), **_SWITCHES}
DECIDING = {
    "steps": 13,
    "batch": 16,
    "lr": 0.5,
    "device": "cpu",
    "precision": "bf16",
    "accumulate": 2,
    "capture": False,
    "evaluate_every": 3,
    "until": 0.5,
}


def test_every_shared_argument_decides_and_changes_the_key_or_is_bookkeeping() -> None:
    for name, value in BOOKKEEPING.items():
        changed = Experiment(**{name: value})
        assert changed != Experiment()
        assert changed.key() == Experiment().key()
    keys = {Experiment(**{name: value}).key() for name, value in DECIDING.items()}
    assert len(keys | {Experiment().key()}) == len(DECIDING) + 1
    assert {field.name for field in dataclasses.fields(Experiment)} == {*BOOKKEEPING, *DECIDING}


def test_another_experiment_has_another_key() -> None:
    class Other(Toy):
        name = "other"

    assert Other().key() != Toy().key()
    assert len(Toy().key()) == 8


def test_arguments_survive_json() -> None:
    experiment = Toy(seeds=(3, 4), out=Path("some") / "folder", until=0.5)
    arguments = experiment.arguments()
    assert json.loads(json.dumps(arguments)) == arguments
    assert arguments.keys() == {field.name for field in dataclasses.fields(Toy)}
    assert arguments["seeds"] == [3, 4]
    assert arguments["out"] == str(Path("some") / "folder")
    assert arguments["until"] == 0.5
    assert experiment.deciding().keys() == arguments.keys() - Toy.bookkeeping


@pytest.mark.parametrize(
    ("steps", "given", "want"),
    [
        (None, None, (12, 1)),
        (40, None, (40, 1)),
        (41, None, (41, 2)),
        (79, None, (79, 2)),
        (100, None, (100, 3)),
        (400, None, (400, 10)),
        (32_813, None, (32_813, 820)),
        (10, 3, (10, 3)),
    ],
)
def test_open_arguments_are_filled(
    steps: int | None, given: int | None, want: tuple[int, int]
) -> None:
    experiment = Toy(steps=steps, evaluate_every=given, device="auto").resolved()
    assert (experiment.steps, experiment.evaluate_every) == want
    assert experiment.device == ("cuda" if torch.cuda.is_available() else "cpu")
    assert experiment.resolved() == experiment


def test_a_short_run_is_evaluated_forty_times_at_most() -> None:
    for steps in range(1, 400):
        every = Toy(steps=steps, evaluate_every=None).resolved().evaluate_every or 0
        assert -(-steps // every) <= 40


def test_what_a_subclass_must_say_and_what_it_may_leave_out() -> None:
    model = torch.nn.Linear(2, 1)
    trial = Trial(model, torch.optim.Adam(model.parameters()))
    assert trial.snapshot(0) == trial.constants() == {}
    for call in (
        trial.evaluate,
        lambda: trial.loss(model, 1, lambda tensor: tensor),
        Experiment().resolved,
        lambda: Experiment().build(0, torch.device("cpu")),
    ):
        with pytest.raises(NotImplementedError):
            call()
