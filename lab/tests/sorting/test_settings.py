"""Settings of the sorting experiment: which runs are of one, in what order, by what names."""

import dataclasses
import random
from typing import Any

import pytest
from lab.tests.figures.samples import make_sorting

from sparsewire_lab.sorting.experiment import Sorting
from sparsewire_lab.sorting.settings import (
    PROTOCOL,
    SETTINGS,
    departure_words,
    names,
    rank,
    reported,
    settings,
)


def test_a_key_is_a_setting() -> None:
    runs = [make_sorting([0.1], key=key, seed=seed) for seed in (0, 1) for key in "ab"]
    other = make_sorting([0.1], key="c", other={"experiment": "identity"})
    first, second = settings([*runs, other])
    assert [[run["seed"] for run in group.runs] for group in (first, second)] == [[0, 1], [0, 1]]
    assert (first.setting["key"], second.setting["key"]) == ("a", "b")


def test_the_order_is_that_of_tables() -> None:
    order = [
        {"size": 4},
        {"size": 4, "method": "exact", "loss": "permutation"},
        {"size": 4, "method": "exact", "loss": "steps"},
        {"size": 4, "method": "sampled", "loss": "steps"},
        {"size": 4, "method": "sampled", "loss": "steps", "preset": "paper"},
        {"size": 4, "method": "neuralsort"},
        {"size": 4, "method": "neuralsort", "steps": 999},
        {"size": 4, "method": "neuralsort", "lr": 0.002},
        {"size": 4, "method": "neuralsort", "lr": 0.005},
        {"size": 4, "method": "neuralsort", "jitter": 0.0},
        {"size": 4, "method": "bitonic"},
        {"size": 4, "method": "another"},
        {"size": 16},
        {"size": 3, "places": 4},
        {"size": 2, "data": "digits"},
    ]
    runs = [make_sorting([0.1], key=str(i), **setting) for i, setting in enumerate(order)]
    random.Random(0).shuffle(runs)
    found = [group.setting["key"] for group in settings(runs)]
    assert found == [str(i) for i in range(len(order))]
    assert rank({"method": "likelihood"}) == 0
    assert rank({"method": "another"}) == 9


@pytest.mark.parametrize(
    ("settings_of", "expected"),
    [
        ([{}, {"method": "exact"}], ["likelihood", "exact quicksort"]),
        ([{"size": 4}, {"size": 8}], ["likelihood, n = 4", "likelihood, n = 8"]),
        ([{"places": 1}, {"places": 3}], ["likelihood, 1 digit", "likelihood, 3 digits"]),
        ([{"loss": "a"}, {"loss": "b"}], ["likelihood, a loss", "likelihood, b loss"]),
        (
            [{"network": "paper"}, {"network": "wide"}],
            ["likelihood", "likelihood, wide network"],
        ),
        ([{"split": "test"}, {"split": "x"}], ["likelihood, test", "likelihood, x"]),
        # The temperature tells them apart; that the batches differ too is left to the table.
        (
            [{"temperature": 0.5, "batch": 1}, {"temperature": 2.0}],
            ["likelihood, temperature 0.5", "likelihood, temperature 2"],
        ),
        ([{"capture": True}, {}], ["likelihood, with capture", "likelihood, capture –"]),
        # What does not change the numbers does not tell settings apart.
        (
            [{"keep_frames": True}, {"keep_frames": False}],
            ["likelihood, key 0", "likelihood, key 1"],
        ),
    ],
)
def test_names_say_what_differs(settings_of: list[dict], expected: list[str]) -> None:
    runs = [make_sorting([0.1], key=str(i), **setting) for i, setting in enumerate(settings_of)]
    assert names(settings(runs)) == expected


def test_what_is_told_elsewhere_is_not_said_again() -> None:
    tried = [{"size": 4}, {"size": 8, "lr": 0.1}, {"size": 8, "lr": 0.2, "preset": "paper"}]
    groups = settings(make_sorting([0.1], key=str(i), **setting) for i, setting in enumerate(tried))
    assert names(groups, stated=("size", "preset", "lr")) == ["likelihood"] * 3
    found = names(groups, stated=("size", "preset"))
    assert found == ["likelihood", "likelihood, lr 0.1", "likelihood, lr 0.2"]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({}, "likelihood"),
        ({"jitter": 0.0, "decay": 0.25}, "likelihood, jitter 0, decay 0.25"),
        ({"cosine": True}, "likelihood"),
        ({"cosine": False}, "likelihood, without cosine"),
        # Method and loss are not said again, and where no preset is known, nothing is.
        ({"method": "exact", "loss": "steps"}, "exact quicksort"),
        ({"preset": "theirs", "lr": 0.1}, "likelihood"),
        ({"bend": 0.0, "tanh": False}, "likelihood, bend 0, without tanh"),
        ({"preset": "paper", "bend": 0.5}, "likelihood, paper's settings, bend 0.5"),
        # What follows from method, network or data is not told.
        ({"method": "odd_even"}, "odd-even network"),
        ({"method": "odd_even", "temperature": 0.3}, "odd-even network, temperature 0.3"),
        ({"network": "wide"}, "likelihood, wide network"),
        ({"data": "digits"}, "likelihood"),
        # Only the paper's network has a tanh.
        ({"data": "digits", "network": "paper"}, "likelihood, with tanh"),
        ({"method": "sampled", "samples": 3}, "sampled quicksort, samples 3"),
        ({"method": "sampled", "preset": "paper"}, "sampled quicksort, paper's settings"),
        (
            {"method": "sampled", "preset": "paper", "lr": 2e-4},
            "sampled quicksort, paper's settings, lr 0.0002",
        ),
    ],
)
def test_names_say_what_is_not_as_the_preset_has_it(arguments: dict, name: str) -> None:
    assert names(settings([make_sorting([0.1], **arguments)])) == [name]


def setting_of(**arguments: Any) -> dict[str, Any]:
    """The arguments in a record of `sparsewire sorting`."""
    return dataclasses.asdict(Sorting(**arguments).resolved())


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"lr": 0.01, "jitter": 0.5, "decay": 0.1, "cosine": True},
        {"temperature": 0.3},
        {"sets": 50},
        {"network": "wide"},  # which has no tanh: that is not said too
        {"tanh": True, "dropout": 0.25},
    ],
)
@pytest.mark.parametrize(
    "task",
    [
        {},
        {"preset": "paper", "size": 4},
        {"method": "odd_even", "split": "validation"},
        {"method": "exact", "loss": "pixels", "steps": 7, "batch": 9, "precision": "bf16"},
        {"method": "bitonic", "preset": "paper", "places": 2},
    ],
)
def test_what_was_given_beside_a_preset_is_found(task: dict, given: dict) -> None:
    """Whatever method and network make of it; what the preset has itself is not given."""
    alone = setting_of(**task)
    wanted = {name: value for name, value in given.items() if alone[name] != value}
    assert SETTINGS.departures(setting_of(**task, **given)) == wanted


def test_the_protocol_is_one_word() -> None:
    """Where all of it is there; told in columns of their own, its arguments are no news."""
    given = {"places": 4, **PROTOCOL}
    assert departure_words(setting_of(**given)) == ["protocol"]
    assert departure_words(setting_of(**given, temperature=0.03)) == [
        "protocol",
        "temperature 0.03",
    ]
    assert departure_words(setting_of(**given), stated=tuple(PROTOCOL)) == []
    others = [given | {"places": 3}, given | {"jitter": 1.0}, given | {"lr": 1e-4}]
    for other in others:
        words = departure_words(setting_of(**other))
        assert "wide network" in words
        assert "protocol" not in words


@pytest.mark.parametrize("strange", [{"preset": "other"}, {"loss": "order"}, {"size": "wide"}])
def test_of_a_strange_record_nothing_is_said(strange: dict) -> None:
    assert SETTINGS.departures(setting_of(method="bitonic", lr=0.1) | strange) == {}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"size": 8, "method": "exact"}, ("about 10 %", 0.1)),
        ({"size": 16, "method": "sampled", "preset": "paper"}, ("around 40 %", 0.4)),
        ({"size": 32}, None),
        ({"places": 4}, None),
        ({"data": "digits"}, None),
        ({"network": "wide"}, None),
        ({"method": "odd_even"}, None),
    ],
)
def test_what_the_paper_says_of_a_task(arguments: dict, said: tuple[str, float] | None) -> None:
    assert reported(make_sorting([0.1], **arguments)["arguments"]) == said
