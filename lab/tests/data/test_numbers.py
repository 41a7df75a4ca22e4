"""Numbers to be sorted: spelled by pictures of their digits, drawn uniformly, from one groups."""

import re
from typing import Any

import pytest
import scipy.stats
import torch
from lab.tests.data.scenes import Watch
from tests.helpers import seeded
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from sparsewire_lab.data import Digits
from sparsewire_lab.data.numbers import (
    LONGEST,
    DigitGroups,
    Numbers,
    group_by_label,
    pictures,
    sample_numbers,
)

COUNTS = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5, 3])
"""How many pictures there are of each digit."""


def some_digits(first: int = 0) -> Digits:
    """Digits in no order; all pixels of a picture tell its place, and no two are alike."""
    labels = torch.arange(10).repeat_interleave(COUNTS)
    labels = labels[torch.randperm(len(labels), generator=seeded(0))]
    places = torch.arange(first, first + len(labels)).to(torch.uint8)
    return Digits(places[:, None, None].repeat(1, 28, 28), labels)


def labels_of(digits: Digits, groups: DigitGroups, which: Tensor) -> Tensor:
    """The labels of the pictures on a groups, found again by what is on them."""
    return digits.labels[groups.images[which][..., 0, 0].long()]


# Groups.


def test_groups_have_every_picture_once_in_the_order_of_labels_and_of_the_digits() -> None:
    digits = some_digits()
    groups = group_by_label(digits)
    places = groups.images[:, 0, 0].long()
    assert torch.equal(places, digits.labels.argsort(stable=True))
    assert torch.equal(groups.images, digits.images[places])
    assert torch.equal(groups.counts, COUNTS)
    assert groups.starts.tolist() == [0, 3, 4, 8, 9, 14, 23, 25, 31, 36]


@pytest.mark.parametrize("missing", [0, 4, 9])
def test_a_digit_without_a_picture_and_a_label_that_is_no_digit_are_refused(missing: int) -> None:
    digits = some_digits()
    kept = digits.labels != missing
    counts = COUNTS.clone()
    counts[missing] = 0
    message = "digits must have a picture of each, 0 to 9, and no others; got "
    with pytest.raises(ValueError, match=f"^{re.escape(message + str(counts.tolist()))}$"):
        group_by_label(Digits(digits.images[kept], digits.labels[kept]))
    with pytest.raises(ValueError, match=f"^{message}"):
        group_by_label(Digits(digits.images[:11], torch.arange(11)))


# What is drawn.


@pytest.mark.parametrize("places", range(1, LONGEST + 1))
def test_pictures_spell_the_number_with_zeros_before_small_ones(places: int) -> None:
    digits = some_digits()
    groups = group_by_label(digits)
    which, values = sample_numbers(groups, 40, 5, places, seeded(1))
    assert which.shape == (40, 5, places)
    assert values.shape == (40, 5)
    assert which.dtype == values.dtype == torch.int64
    spelled = labels_of(digits, groups, which).flatten(0, 1).tolist()
    for number, value in zip(spelled, values.flatten().tolist(), strict=True):
        assert "".join(map(str, number)) == f"{value:0{places}d}"
    first = labels_of(digits, groups, which)[..., 0]
    assert (first == 0).any()
    assert (first == 9).any()


@pytest.mark.parametrize("places", [1, 2, 6])
def test_values_are_uniform(places: int) -> None:
    """Of long numbers, every digit."""
    values = sample_numbers(group_by_label(some_digits()), 1000, 20, places, seeded(2)).values
    assert values.max() < 10**places
    whole = [(values, 10**places)] if places < 3 else []
    digits = [(values // 10**power % 10, 10) for power in range(places)]
    for numbers, size in (*whole, *digits):
        counts = numbers.flatten().bincount(minlength=size)
        assert scipy.stats.chisquare(counts.numpy()).pvalue > 0.001


def test_pictures_of_each_digit_are_uniform() -> None:
    """However many there are of it: each has its share of a tenth. Numbers have three digits."""
    which = sample_numbers(group_by_label(some_digits()), 1000, 10, generator=seeded(4)).which
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
    counts = (2 * which[..., 0] + which[..., 1]).flatten().bincount(minlength=4)
    assert scipy.stats.chisquare(counts.numpy()).pvalue > 0.001


def test_a_draw_at_the_very_end_of_a_digit_is_still_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random numbers below 1 may be 1 after a product; the next digit must not come then."""
    groups = group_by_label(some_digits())
    monkeypatch.setattr(torch, "rand", lambda shape, **_: torch.ones(shape))
    which, values = sample_numbers(groups, 50, 4, 1)
    last = groups.starts + groups.counts - 1
    assert torch.equal(which[..., 0], last[values])


def test_the_same_generator_gives_the_same_numbers_and_leaves_torch_s_own() -> None:
    groups = group_by_label(some_digits())

    def draw(seed: int) -> Numbers:
        return sample_numbers(groups, 3, 4, 2, seeded(seed))

    before = torch.get_rng_state()
    first, again, other = draw(1), draw(1), draw(2)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.which, again.which)
    assert torch.equal(first.values, again.values)
    assert not torch.equal(first.values, other.values)
    torch.manual_seed(1)
    assert torch.equal(sample_numbers(groups, 3, 4, 2).which, first.which)


# Pictures.


@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3, 4)], ids=str)
def test_pictures_are_those_of_the_shelf_from_0_to_1(shape: tuple[int, ...]) -> None:
    images = torch.randint(256, (12, 28, 28), dtype=torch.uint8)
    images[0, 0, :2] = torch.tensor([0, 255])
    groups = group_by_label(Digits(images, torch.arange(12) % 10))
    which = torch.randint(12, shape, generator=seeded(0))
    found = pictures(groups, which)
    assert found.dtype == torch.float32
    assert found.shape == (*shape, 28, 28)
    assert torch.equal(found, groups.images[which].float() / 255)
    first = pictures(groups, torch.tensor([0]))
    assert (first.min(), first.max()) == (0, 1)


def test_groups_never_mix() -> None:
    """Every picture that is drawn from a groups was given to it."""
    for first in (0, 100):
        groups = group_by_label(some_digits(first))
        found = pictures(groups, sample_numbers(groups, 50, 4, generator=seeded(0)).which) * 255
        assert found.round().unique().long().tolist() == list(range(first, first + 39))


# What it costs.


def test_no_value_is_asked_for() -> None:
    # Tensors without values: whatever would have to wait for one fails.
    groups = group_by_label(some_digits())
    with FakeTensorMode(allow_non_fake_inputs=True):
        which, values = sample_numbers(groups, 4, 5, 2)
        found = pictures(groups, which)
    assert which.shape == (4, 5, 2)
    assert values.shape == (4, 5)
    assert found.shape == (4, 5, 2, 28, 28)


def test_operations_are_as_many_for_any_batch() -> None:
    groups, operations = group_by_label(some_digits()), []
    for batch, n, places in ((1, 1, 1), (50, 8, 6)):
        with Watch() as watch:
            pictures(groups, sample_numbers(groups, batch, n, places).which)
        operations.append(watch.operations)
    assert operations[0] == operations[1]
    assert len(operations[0]) < 40


# What cannot be.


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
        sample_numbers(group_by_label(some_digits()), **given)
