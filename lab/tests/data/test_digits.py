"""The digits of scikit-learn as if they were MNIST."""

import pytest
import torch

from sparsewire_lab.data import load_digits

pytest.importorskip("sklearn")


def test_splits_are_disjoint_and_stay_what_they_are() -> None:
    train, validation = load_digits("train"), load_digits("validation")
    test, both = load_digits("test"), load_digits("all-train")
    assert [len(split.labels) for split in (train, validation, test)] == [1197, 300, 300]
    assert torch.equal(torch.cat((train.images, validation.images)), both.images)
    assert torch.equal(torch.cat((train.labels, validation.labels)), both.labels)
    assert train.labels[:8].tolist() == [2, 8, 2, 6, 6, 7, 1, 9]
    assert test.labels[-8:].tolist() == [8, 4, 5, 3, 3, 7, 7, 8]
    # No two of the 1,797 pictures are alike, so that a picture says which one it is.
    images = torch.cat((both.images, test.images))
    assert len({image.numpy().tobytes() for image in images}) == 1797


def test_pictures_look_like_those_of_mnist() -> None:
    images, labels = load_digits("train")
    assert images.shape == (1197, 28, 28)
    assert images.dtype == torch.uint8
    assert labels.dtype == torch.int64
    assert labels.unique().tolist() == list(range(10))
    assert images.max() == 255
    assert not images[:, :4].any()
    assert not images[:, :, -4:].any()
    # A zero is a ring: dark in the middle, bright around it.
    zero = images[labels == 0].float().mean(0)
    assert zero[13:15, 13:15].mean() < 40
    assert zero[13:15].amax() > 150
    assert zero[6].amax() > 120
