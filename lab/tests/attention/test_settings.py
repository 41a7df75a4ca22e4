"""Settings of the attention experiment: which runs are of one, in what order, by what names."""

import dataclasses
import random
from typing import Any

import pytest
from lab.tests.figures.samples import make_attention

from sparsewire_lab.attention.experiment import Attention
from sparsewire_lab.attention.settings import SETTINGS, names, settings
from sparsewire_lab.figures.settings import plain_value

departures, departure_words = SETTINGS.departures, SETTINGS.departure_words


def test_a_key_is_a_setting() -> None:
    runs = [make_attention([0.1], key=key, seed=seed) for seed in (0, 1, 2) for key in "ab"]
    runs[0]["status"] = "diverged"
    other = make_attention([0.1], key="c", other={"experiment": "identity"})
    first, second = settings([*runs, other])
    assert [len(first.runs), len(second.runs)] == [3, 3]
    assert (first.seeds, second.seeds) == ("1 of 3 diverged", "3")
    assert [run["seed"] for run in first.finished] == [1, 2]


def test_the_order_is_that_of_tables() -> None:
    order = [
        {"canvas": 60, "model": "reinforce"},
        {"model": "convnet"},
        {"added": "later"},
        {},
        {"preset": "paper"},
        {"glimpses": 8, "size": 12},
        {"glimpses": 8, "size": 12, "preset": "paper"},
        {"model": "transformer"},
        {"model": "reinforce"},
        {"canvas": 400, "model": "convnet"},
    ]
    runs = [make_attention([0.1], key=str(i), **setting) for i, setting in enumerate(order)]
    random.Random(0).shuffle(runs)
    found = settings(runs)
    assert [group.setting["key"] for group in found] == [str(i) for i in range(len(order))]


@pytest.mark.parametrize(
    ("settings_of", "expected"),
    [
        # The preset has conv: that needs no words.
        ([{"head": "mlp"}, {"head": "conv"}], ["mlp head", ""]),
        ([{"batch": 128}, {"batch": 4096}], ["batch 128", "batch 4,096"]),
        ([{"head": "mlp", "lr": 0.1}, {"head": "conv"}], ["lr 0.1, mlp head", ""]),
        ([{"lr": 0.1}, {"lr": 0.2}], ["lr 0.1", "lr 0.2"]),
        # The paper's has mlp.
        (
            [{"preset": "paper", "head": "mlp"}, {"preset": "paper", "head": "conv"}],
            ["paper's settings", "paper's settings, conv head"],
        ),
        ([{"data": "mnist"}, {"data": "digits"}], ["mnist", "digits"]),
        ([{"canvas": 60}, {"canvas": 100}], ["60 × 60 pixels", "100 × 100 pixels"]),
        ([{"cosine": True}, {"cosine": False}], ["", "cosine no"]),
        # What the preset is, is not known of all; batches tell them apart.
        ([{"canvas": 1, "batch": 2}, {"canvas": 1, "batch": 4}], ["batch 2", "batch 4"]),
        # An argument that a record does not know was added after it.
        ([{"width": 32}, {}], ["", "earlier version"]),
        ([{"width": 64}, {"head": "mlp"}], ["width 64", "earlier version, mlp head"]),
        ([{"keep_frames": True}, {"lr": 0.1}], ["", "lr 0.1"]),
        # What does not change the numbers does not tell settings apart.
        ([{"out": "x"}, {"out": "y"}], ["key 0", "key 1"]),
    ],
)
def test_names_say_what_differs(settings_of: list[dict], expected: list[str]) -> None:
    runs = [make_attention([0.1], key=str(i), **setting) for i, setting in enumerate(settings_of)]
    plain = "1 glimpse of 32 × 32"
    assert names(settings(runs)) == [", ".join(filter(None, (plain, w))) for w in expected]


def setting_of(**arguments: Any) -> dict[str, Any]:
    """The arguments in a record of `sparsewire attention`."""
    return dataclasses.asdict(Attention(**arguments).resolved())


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"lr": 0.01, "head": "mlp", "straight": 1.0},
        {"settle": 0.0},
        {"source_rate": 0.7, "frame_rate": 0.7},
        {"region": 20, "scale": 0.1},
        {"cosine": False},
        {"source": "convnet"},  # corners are then squashed: that is not said too
        {"squash": "points", "source": "convnet"},
    ],
)
@pytest.mark.parametrize(
    "task",
    [
        {},
        {"glimpses": 8},
        {"canvas": 400, "split": "validation"},
        {"data": "digits", "steps": 7, "batch": 9, "seeds": (1, 2), "precision": "bf16"},
    ],
)
def test_what_was_given_beside_a_preset_is_found(task: dict, given: dict) -> None:
    """Whatever the preset makes of number, canvas and data."""
    assert departures(setting_of(**task, **given)) == given


def test_each_preset_is_its_own_measure() -> None:
    assert departures(setting_of(preset="paper")) == {}
    assert departures(setting_of(preset="paper", zoom=1.0)) == {"zoom": 1.0}
    assert departures(setting_of(glimpses=8, width=32)) == {"width": 32}
    assert departures(setting_of(glimpses=1, width=32)) == {}
    changed = {"width": 64, "settle": 0.0, "frame_rate": 2.0}
    assert departures(setting_of() | changed) == changed
    words = departure_words(setting_of(head="mlp", source_rate=1.0, cosine=False))
    assert words == ["mlp head", "cosine no", "source rate 1"]


@pytest.mark.parametrize("strange", [{"preset": "other"}, {"canvas": 1}, {"size": "wide"}])
def test_of_a_strange_record_nothing_is_said(strange: dict) -> None:
    assert departures(setting_of(head="mlp") | strange) == {}


def test_what_is_told_elsewhere_is_not_said_again_but_reduced_images_always() -> None:
    tried = [("mlp", 1), ("conv", 1), ("conv", 2)]
    runs = [
        make_attention([0.1], key=str(i), head=head, region=region)
        for i, (head, region) in enumerate(tried)
    ]
    found = names(settings(runs), stated=("head",))
    assert found == [f"1 glimpse of 32 × 32, region {region}" for _, region in tried]
    assert names(settings(runs[:2]), stated=("head",)) == ["1 glimpse of 32 × 32"] * 2
    runs = [make_attention([0.1], key=m, model=m, reduce=4) for m in ("convnet", "glimpse")]
    assert names(settings(runs)) == [
        "plain ConvNet, of the image reduced 4 ×",
        "1 glimpse of 32 × 32, chosen on the image reduced 4 ×",
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "–"), (True, "yes"), (0.0, "0"), (0.05, "0.05"), (4096, "4,096"), ("mlp", "mlp")],
)
def test_values_in_words(value: object, expected: str) -> None:
    assert plain_value(value) == expected
