"""The arguments of the sorting experiment: what is filled in, refused, and what decides."""

import dataclasses
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from lab.tests.sorting.sorts import LOSSES, METHODS, checked, of_every_method

from sparsewire_lab.sorting.experiment import PEERS, PRESETS, Loss, Sorting
from sparsewire_lab.train.options import Experiment

of_every_preset = pytest.mark.parametrize("preset", PRESETS)

# What is filled in.


@pytest.mark.parametrize(
    ("preset", "numbers"),
    [
        (
            "paper",
            {"method": "sampled", "loss": "steps", "samples": 16, "lr": 5e-5, "temperature": 0.1}
            | {"jitter": 0.0, "dropout": 0.0, "decay": 0.0, "cosine": False}
            | {"bend": 0.0, "tanh": False, "batch": 64, "sets": 10_000},
        ),
        (
            "ours",
            {"method": "likelihood", "loss": "order", "samples": None, "lr": 1e-3}
            | {"temperature": 1.0, "jitter": 1.0, "cosine": True, "bend": 0.5, "tanh": True},
        ),
    ],
)
def test_presets_have_their_numbers(preset, numbers):
    args = Sorting(preset=preset).resolved()
    assert (args.size, args.places, args.network) == (16, 3, "paper")
    assert {name: getattr(args, name) for name in numbers} == numbers


def test_small_digits_are_learned_from_in_fewer_and_larger_steps():
    """By a small network, unless something is asked of it that it does not have."""
    args = Sorting(data="digits").resolved()
    assert (args.lr, args.jitter, args.network) == (2e-3, 0.3, "wide")
    assert Sorting(data="digits", jitter=1.0, lr=0.1).resolved().jitter == 1.0
    paper = Sorting(data="digits", preset="paper").resolved()
    assert (paper.lr, paper.jitter) == (5e-5, 0.0)
    asked: list[dict[str, Any]] = [{"dropout": 0.5}, {"tanh": True}, {"network": "paper"}]
    for given in asked:
        assert Sorting(data="digits", **given).resolved().network == "paper"


@of_every_preset
@of_every_method
def test_nothing_is_left_open(method, preset):
    sources: list[tuple[Any, int]] = [("mnist", 12_000), ("digits", 500)]
    for data, steps in sources:
        args = checked(Sorting(method=method, preset=preset, data=data))
        open_ = [name for name, value in args.arguments().items() if value is None]
        more = [] if method == "sampled" else ["samples"]
        assert sorted(open_) == sorted(["until", "mnist", "reach", *more])
        assert args.resolved() == args
        assert args.steps == steps


@pytest.mark.parametrize(
    ("method", "ours", "papers", "temperature"),
    [
        ("likelihood", "order", "order", 1.0),
        ("exact", "permutation", "steps", 0.1),
        ("sampled", "steps", "steps", 0.1),
        ("projection", "ranks", "ranks", 1.0),
        *((one, "permutation", "permutation", 1.0) for one in METHODS[3:6]),
        *((one, "permutation", "permutation", 0.1) for one in ("odd_even", "bitonic")),
    ],
)
def test_every_method_has_a_loss_and_a_temperature_of_its_own(method, ours, papers, temperature):
    plain = Sorting(method=method).resolved()
    assert (plain.loss, plain.temperature) == (ours, temperature)
    assert Sorting(method=method, preset="paper").resolved().loss == papers
    assert Sorting(method=method, temperature=0.25).resolved().temperature == 0.25


@pytest.mark.parametrize("size", [2, 5, 16])
def test_as_many_vectors_are_drawn_as_there_are_numbers(size):
    assert Sorting(method="sampled", size=size).resolved().samples == size
    assert Sorting(method="sampled", size=size, samples=3).resolved().samples == 3


@of_every_preset
def test_what_is_given_stays(preset):
    """Zeros and False too."""
    given: dict[str, Any] = {
        "steps": 7, "lr": 0.5, "size": 9, "places": 2, "method": "exact", "loss": "pixels",
        "temperature": 0.5, "jitter": 0.0, "dropout": 0.0, "decay": 0.0, "cosine": False,
        "sets": 11, "evaluate_every": 3, "network": "wide", "split": "validation",
    }  # fmt: skip
    other = {"jitter": 0.5, "dropout": 0.25, "decay": 0.125, "cosine": True}
    for asked in (given, given | other | {"network": "paper"}):
        resolved = Sorting(preset=preset, **asked).resolved()
        assert {name: getattr(resolved, name) for name in asked} == asked


# What is refused.


@of_every_method
@pytest.mark.parametrize("loss", get_args(Loss))
def test_a_loss_goes_with_its_methods_only(method, loss):
    if loss in LOSSES[method]:
        assert checked(Sorting(method=method, loss=loss)).loss == loss
        return
    message = rf"^loss \w+ (belongs to|needs) method .*; got ({loss} with )?{method}$"
    with pytest.raises(ValueError, match=message):
        Sorting(method=method, loss=loss).resolved()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"size": 1}, "size must be at least 2; got 1"),
    ({"size": 99_999_999_999}, "size must be at most 16,777,216; got 99,999,999,999"),
    ({"size": 6, "method": "bitonic"}, "size must be a power of two for method bitonic; got 6"),
    ({"sets": 2**30}, "sets must be at most 16,777,216; got 1,073,741,824"),
    ({"sets": 0}, "sets must be at least 1; got 0"),
    ({"places": 0}, "places must be at least 1; got 0"),
    ({"places": 7}, "places must be 1 to 6; got 7"),
    ({"samples": 0, "method": "sampled"}, "samples must be at least 1; got 0"),
    ({"reach": 0}, "reach must be at least 1; got 0"),
    ({"temperature": 0.0}, "temperature must be between 1e-09 and 1e+06; got 0.0"),
    ({"jitter": 11.0}, "jitter must be between 0 and 10; got 11.0"),
    ({"dropout": 1.5}, "dropout must be between 0 and 1; got 1.5"),
    ({"decay": -0.5}, "decay must be between 0 and 1; got -0.5"),
    ({"bend": -1.0}, "bend must be between 0 and 1e+06; got -1.0"),
    ({"until": 0.1}, "until would choose by the test digits when to stop; use validation"),
    ({"data": "digits", "mnist": Path("x")}, "mnist is a folder for --data mnist; got digits"),
    ({"lr": 0.0}, "lr must be above 0; got 0.0"),
    ({"batch": 0}, "batch must be at least 1; got 0"),
    ({"samples": 3}, "samples has a meaning with method sampled only; got likelihood"),
]
NEEDED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "method likelihood only; got exact": ({"method": "exact"}, {"bend": 0.5, "reach": 2}),
    "network paper only; got wide": ({"network": "wide"}, {"tanh": True, "dropout": 0.5}),
}
REFUSED += [
    ({**given, name: value}, f"{name} has a meaning with {needed}")
    for needed, (given, without_meaning) in NEEDED.items()
    for name, value in without_meaning.items()
]
REFUSED += [
    ({"peers": True, name: value}, f"peers trains every method, and {name} is of one; give one")
    for name, value in (("method", "exact"), ("temperature", 1.0), ("reach", 1))
]


@pytest.mark.parametrize(("options", "message"), REFUSED, ids=[r[1] for r in REFUSED])
def test_arguments_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        checked(Sorting(**options))


def test_powers_of_two_and_validation_digits_are_accepted():
    for size in (2, 4, 8, 16):
        assert checked(Sorting(method="bitonic", size=size)).size == size
    assert checked(Sorting(split="validation", until=0.1)).until == 0.1


# What decides.

DECIDING: dict[str, tuple[Any, Any]] = {
    "size": (16, 8), "places": (3, 4), "method": ("likelihood", "exact"),
    "loss": ("order", "pixels"), "preset": ("ours", "paper"), "network": ("paper", "wide"),
    "data": ("mnist", "digits"), "split": ("test", "validation"), "temperature": (1.0, 0.5),
    "samples": (3, 4), "jitter": (0.25, 0.5), "dropout": (0.25, 0.5), "decay": (0.25, 0.5),
    "cosine": (True, False), "sets": (10_000, 100), "bend": (0.5, 0.25), "tanh": (True, False),
    "reach": (None, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", DECIDING)
def test_what_decides_changes_the_key(name):
    args = Sorting(device="cpu").resolved()
    other = next(value for value in DECIDING[name] if value != getattr(args, name))
    assert dataclasses.replace(args, **{name: other}).key() != args.key()


def test_bookkeeping_leaves_the_key():
    args = Sorting(device="cpu").resolved()
    other = dataclasses.replace(args, mnist=Path("elsewhere"), quiet=True, out=Path("x"))
    assert other.key() == args.key()


def test_every_argument_decides_or_is_bookkeeping():
    every = {field.name for field in dataclasses.fields(Sorting)}
    own = every - Experiment.__annotations__.keys()
    assert own == {*DECIDING, "mnist", "peers", "keep_frames"}
    assert Sorting.bookkeeping & own == {"mnist", "peers", "keep_frames"}


def test_what_is_filled_in_or_has_no_meaning_is_not_told_apart():
    """A peer has no cuts to bend, and the wide network no features of single digits."""
    said = Sorting(method="likelihood", loss="order", lr=1e-3, jitter=1.0, temperature=1.0)
    assert said.resolved().key() == Sorting().resolved().key()
    peer, wide = Sorting(method="odd_even").resolved(), Sorting(network="wide").resolved()
    assert (peer.bend, peer.tanh, wide.bend, wide.tanh) == (0.0, True, 0.5, False)


@pytest.mark.parametrize(
    ("options", "label"),
    [
        ({}, "likelihood 16x3 ours"),
        ({"preset": "paper"}, "sampled steps 16x3 paper"),
        ({"preset": "paper", "size": 4, "places": 1}, "sampled steps 4x1 paper"),
        ({"method": "neuralsort", "size": 5, "places": 4}, "neuralsort permutation 5x4 ours"),
        ({"method": "odd_even", "loss": "pixels"}, "odd_even pixels 16x3 ours"),
    ],
)
def test_labels(options, label):
    assert Sorting(**options).resolved().label() == label


# All methods in one run.


def test_peers_are_every_method_with_all_else_alike():
    """Each is the run of its method alone; a bitonic network needs a size that it has."""
    settings = [each.resolved() for each in Sorting(peers=True, steps=50).settings()]
    assert {each.method for each in settings} == set(METHODS) == set(PEERS)
    assert len({each.key() for each in settings}) == len(settings)
    own = {"method", "loss", "temperature", "samples", "bend"}
    shared = [{k: v for k, v in each.deciding().items() if k not in own} for each in settings]
    assert all(each == shared[0] for each in shared)
    for each in Sorting(peers=True).settings():
        alone = Sorting(method=each.method, temperature=each.temperature)
        assert each.resolved().key() == alone.resolved().key()
    methods = [each.method for each in Sorting(peers=True, size=9).settings()]
    assert methods == [method for method in PEERS if method != "bitonic"]
