"""Numbers to be sorted: spelled by pictures of their digits, drawn uniformly."""

import re
from typing import Any

import pytest
import scipy.stats
import torch
from lab.tests.data.scenes import is_uniform
from tests.helpers import seeded

from sparsewire_lab.data import Digits
from sparsewire_lab.data.numbers import LONGEST, group_by_label, pictures, sample_numbers

COUNTS = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5, 3])
"""How many pictures there are of each digit."""


def some_digits() -> Digits:
    """Digits in no order; all pixels of a picture tell its place, and no two are alike."""
    labels = torch.arange(10).repeat_interleave(COUNTS)
    labels = labels[torch.randperm(len(labels), generator=seeded(0))]
    places = torch.arange(len(labels)).to(torch.uint8)
    return Digits(places[:, None, None].repeat(1, 28, 28), labels)


DIGITS = some_digits()
GROUPS = group_by_label(DIGITS)


def test_groups_have_every_picture_once_in_the_order_of_labels_and_of_the_digits() -> None:
    places = GROUPS.images[:, 0, 0].long()
    assert torch.equal(places, DIGITS.labels.argsort(stable=True))
    assert torch.equal(GROUPS.images, DIGITS.images[places])
    assert torch.equal(GROUPS.counts, COUNTS)
    assert GROUPS.starts.tolist() == [0, 3, 4, 8, 9, 14, 23, 25, 31, 36]


@pytest.mark.parametrize("missing", [0, 4, 9])
def test_a_digit_without_a_picture_and_a_label_that_is_no_digit_are_refused(missing: int) -> None:
    kept = DIGITS.labels != missing
    counts = COUNTS.clone()
    counts[missing] = 0
    message = "digits must have a picture of each, 0 to 9, and no others; got "
    with pytest.raises(ValueError, match=f"^{re.escape(message + str(counts.tolist()))}$"):
        group_by_label(Digits(DIGITS.images[kept], DIGITS.labels[kept]))
    with pytest.raises(ValueError, match=f"^{message}"):
        group_by_label(Digits(DIGITS.images[:11], torch.arange(11)))


@pytest.mark.parametrize("places", range(1, LONGEST + 1))
def test_pictures_spell_the_number_with_zeros_before_small_ones(places: int) -> None:
    which, values = sample_numbers(GROUPS, 40, 5, places, seeded(1))
    assert which.shape == (40, 5, places)
    assert values.shape == (40, 5)
    assert which.dtype == values.dtype == torch.int64
    spelled = DIGITS.labels[GROUPS.images[which][..., 0, 0].long()]
    for number, value in zip(
        spelled.flatten(0, 1).tolist(), values.flatten().tolist(), strict=True
    ):
        assert "".join(map(str, number)) == f"{value:0{places}d}"
    assert {0, 9} <= set(spelled[..., 0].flatten().tolist())


@pytest.mark.parametrize("places", [1, 2, 6])
def test_values_are_uniform(places: int) -> None:
    """Of long numbers, every digit."""
    values = sample_numbers(GROUPS, 1000, 20, places, seeded(2)).values
    assert values.max() < 10**places
    assert places > 2 or is_uniform(values, 10**places)
    assert all(is_uniform(values // 10**power % 10, 10) for power in range(places))


def test_pictures_of_each_digit_are_uniform() -> None:
    """However many there are of it: each has its share of a tenth. Numbers have three digits."""
    which = sample_numbers(GROUPS, 1000, 10, generator=seeded(4)).which
    assert which.shape == (1000, 10, 3)
    counts = which.flatten().bincount(minlength=39)
    assert len(counts) == 39
    expected = which.numel() / 10 / COUNTS.repeat_interleave(COUNTS)
    assert scipy.stats.chisquare(counts.numpy(), expected.numpy()).pvalue > 0.001


def test_pictures_do_not_follow_from_values_nor_from_each_other() -> None:
    """Of a digit with two pictures, both come at each place, and in all four pairs."""
    labels = torch.cat([torch.arange(10), torch.arange(10)])
    groups = group_by_label(Digits(torch.zeros(20, 28, 28, dtype=torch.uint8), labels))
    which = sample_numbers(groups, 500, 10, 2, seeded(5)).which % 2
    assert is_uniform(2 * which[..., 0] + which[..., 1], 4)


def test_a_draw_at_the_very_end_of_a_digit_is_still_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random numbers below 1 may be 1 after a product; the next digit must not come then."""
    monkeypatch.setattr(torch, "rand", lambda shape, **_: torch.ones(shape))
    which, values = sample_numbers(GROUPS, 50, 4, 1)
    last = GROUPS.starts + GROUPS.counts - 1
    assert torch.equal(which[..., 0], last[values])


@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3, 4)], ids=str)
def test_pictures_are_those_of_the_groups_from_0_to_1(shape: tuple[int, ...]) -> None:
    images = torch.randint(256, (12, 28, 28), dtype=torch.uint8)
    images[0, 0, :2] = torch.tensor([0, 255])
    groups = group_by_label(Digits(images, torch.arange(12) % 10))
    which = torch.randint(12, shape, generator=seeded(0))
    found = pictures(groups, which)
    assert found.dtype == torch.float32
    assert found.shape == (*shape, 28, 28)
    assert torch.equal(found, groups.images[which].float() / 255)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 0}, "batch must be at least 1; got 0"),
        ({"n": 0}, "n must be at least 1; got 0"),
        ({"places": 0}, "places must be at least 1; got 0"),
        ({"places": 7}, "places must be 1 to 6; got 7"),
    ],
)
def test_numbers_that_cannot_be_are_refused(options: dict[str, int], message: str) -> None:
    given: dict[str, Any] = {"batch": 2, "n": 3, "places": 3} | options
    with pytest.raises(ValueError, match=f"^{message}$"):
        sample_numbers(GROUPS, **given)
