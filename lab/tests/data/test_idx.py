"""IDX files are read strictly."""

import numpy as np
import pytest
from lab.tests.data.little import FILES, TEST_IMAGES, TEST_LABELS, idx

from sparsewire_lab.data.idx import read_digits

IMAGES, LABELS = FILES[TEST_IMAGES], FILES[TEST_LABELS]


@pytest.mark.parametrize(
    ("images", "labels", "complaint"),
    [
        (LABELS, LABELS, "images must begin with the bytes 00000803; got 00000801"),
        (b"", LABELS, "images must begin with the bytes 00000803; got "),
        (IMAGES[:9], LABELS, "images must have a head of 16 bytes; got 9"),
        (IMAGES[:-1], LABELS, r"images must be 2,368 bytes long, as its head says; got 2,367"),
        (IMAGES + b"0", LABELS, r"images must be 2,368 bytes long, as its head says; got 2,369"),
        (idx(np.zeros((3, 28, 27))), LABELS, r"of shape \(28, 28\); got \(28, 27\)"),
        (IMAGES, IMAGES, "labels must begin with the bytes 00000801; got 00000803"),
        (IMAGES, idx(np.arange(4)), "labels must be as many as images, 3; got 4"),
        (IMAGES, idx(np.array([1, 10, 2])), "labels must be 0 to 9; got 10"),
    ],
)
def test_what_is_wrong_is_named(images: bytes, labels: bytes, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        read_digits(images, labels)


def test_no_digits_are_few_but_fine() -> None:
    assert len(read_digits(idx(np.zeros((0, 28, 28))), idx(np.zeros(0))).images) == 0
