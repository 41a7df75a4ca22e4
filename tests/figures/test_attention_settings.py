"""Settings of the attention experiment: which runs are of one, in what order, by what names."""

import random

import pytest
from attention_runs import make_attention

from sparsewire.figures.settings import finished, names, plain_value, seeds, settings


def test_a_key_is_a_setting() -> None:
    runs = [make_attention([0.1], key=key, seed=seed) for seed in (0, 1, 2) for key in "ab"]
    runs[0]["status"] = "diverged"
    other = make_attention([0.1], key="c", other={"experiment": "identity"})
    first, second = settings([*runs, other])
    assert [len(first.runs), len(second.runs)] == [3, 3]
    assert (seeds(first), seeds(second)) == ("1 of 3 diverged", "3")
    assert [run["seed"] for run in finished(first)] == [1, 2]


def test_the_order_is_that_of_tables() -> None:
    order = [
        {"canvas": 60, "model": "reinforce"},
        {"model": "convnet"},
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
        ([{"head": "mlp"}, {"head": "conv"}], ["mlp head", "conv head"]),
        ([{"batch": 128}, {"batch": 4096}], ["batch 128", "batch 4,096"]),
        # The head tells them apart; that the rates differ too is left to the table.
        ([{"head": "mlp", "lr": 0.1}, {"head": "conv"}], ["mlp head", "conv head"]),
        ([{"data": "mnist"}, {"data": "digits"}], ["mnist", "digits"]),
        ([{"canvas": 60}, {"canvas": 100}], ["60 × 60 pixels", "100 × 100 pixels"]),
        ([{"cosine": True}, {"cosine": False}], ["cosine yes", "cosine no"]),
        ([{"global_samples": 4}, {}], ["global samples 4", "global samples –"]),
        # What does not change the numbers does not tell settings apart.
        ([{"out": "x"}, {"out": "y"}], ["key 0", "key 1"]),
    ],
)
def test_names_say_what_differs(settings_of: list[dict], expected: list[str]) -> None:
    runs = [make_attention([0.1], key=str(i), **setting) for i, setting in enumerate(settings_of)]
    assert names(settings(runs)) == [f"1 glimpse of 32 × 32, {words}" for words in expected]


def test_what_is_told_elsewhere_is_not_said_again() -> None:
    tried = [("mlp", 1), ("conv", 1), ("conv", 2)]
    runs = [
        make_attention([0.1], key=str(i), head=head, region=region)
        for i, (head, region) in enumerate(tried)
    ]
    found = names(settings(runs), told=("head",))
    assert found == [f"1 glimpse of 32 × 32, region {region}" for _, region in tried]
    assert names(settings(runs[:2]), told=("head",)) == ["1 glimpse of 32 × 32"] * 2


def test_what_a_model_sees_reduced_is_always_said() -> None:
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
