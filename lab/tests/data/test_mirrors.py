"""Mirrors that hang up, lie, cannot continue, or are not there."""

import gzip
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from lab.tests.data.little import FILES, PACKED, TEST_IMAGES, TEST_LABELS, Server, serving

from sparsewire_lab.data import fetch, load_mnist, mnist
from sparsewire_lab.files import DiskError

NAME = f"{TEST_IMAGES}.gz"
WHOLE = PACKED[NAME]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A mirror, the only one."""
    with serving() as server:
        monkeypatch.setattr(mnist, "MIRRORS", (server.url,))
        yield server


def loads(cache: Path) -> None:
    """See that the test digits come, and that they and nothing else are in the cache."""
    digits = load_mnist("test")
    assert digits.images.numpy().tobytes() == FILES[TEST_IMAGES][16:]
    assert sorted(os.listdir(cache)) == [TEST_IMAGES, TEST_LABELS]


@pytest.mark.parametrize(
    ("part", "cuts", "ranges", "later"),
    [
        (WHOLE[:1000], [], True, []),
        (WHOLE, [], True, []),  # it was whole already
        (b"", [700, 300], True, ["bytes=700-", "bytes=1000-"]),
        (WHOLE[:1000], [], False, []),  # the server sends the whole file again
        (WHOLE + b"more", [], True, [None]),
        (b"x" * 1000, [], True, [None]),
        (b"x" * len(WHOLE), [], True, [None]),
    ],
)
def test_an_earlier_try_is_continued_if_it_fits(
    part: bytes,
    cuts: list[int],
    ranges: bool,
    later: list[str | None],
    server: Server,
    cache: Path,
) -> None:
    server.cuts, server.ranges = cuts, ranges
    cache.mkdir(parents=True)
    (cache / f"{NAME}.part").write_bytes(part)
    loads(cache)
    first = f"bytes={len(part)}-" if part else None
    assert [wanted for _, wanted in server.asked] == [first, *later, None]


def test_what_came_before_it_broke_off_is_kept_for_the_next_time(
    server: Server, cache: Path
) -> None:
    server.cuts = [500, 0]
    with pytest.raises(RuntimeError, match=f"broke off after 500 of {len(WHOLE):,} bytes"):
        load_mnist("test")
    assert os.listdir(cache) == [f"{NAME}.part"]
    loads(cache)


def test_a_server_that_always_hangs_up_or_has_nothing_is_left(server: Server) -> None:
    server.cuts = [10] * 20
    with pytest.raises(RuntimeError, match="broke off 4 times"):
        load_mnist("test")
    assert len(server.asked) == 4
    server.files.clear()
    with pytest.raises(RuntimeError, match=f"{NAME}: HTTP status 404 Not Found"):
        load_mnist("test")


def test_a_server_that_stalls_is_left(
    server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "TIMEOUT", 0.1)
    server.stall = True
    with pytest.raises(RuntimeError, match="broke off: timed out"):
        load_mnist("test")
    assert not (cache / TEST_IMAGES).exists()


@pytest.mark.parametrize(
    ("data", "complaint", "most"),
    [
        (gzip.compress(b"soup", mtime=0), f"{TEST_IMAGES} must have the SHA-256 .*; it has", None),
        (WHOLE[:-9], "not a whole gzip file", None),
        (b"<html>", "not a whole gzip file", None),
        (WHOLE, "must have at most 100 bytes; it has more", 100),
    ],
)
def test_a_wrong_file_is_refused_and_not_kept(
    data: bytes,
    complaint: str,
    most: int | None,
    server: Server,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetch, "MOST_BYTES", most or fetch.MOST_BYTES)
    server.files[NAME] = data
    with pytest.raises(RuntimeError, match=complaint):
        load_mnist("test")
    assert os.listdir(cache) == []
    assert len(server.asked) == 1


def test_the_next_mirror_is_asked_for_what_is_missing(
    server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving({NAME: WHOLE}) as first:
        monkeypatch.setattr(mnist, "MIRRORS", ("http://127.0.0.1:9/", first.url, server.url))
        loads(cache)
        assert [name for name, _ in first.asked] == [NAME, f"{TEST_LABELS}.gz"]
    assert server.asked == [(f"{TEST_LABELS}.gz", None)]


def test_a_wrong_file_in_the_cache_is_replaced(server: Server, cache: Path) -> None:
    cache.mkdir(parents=True)
    (cache / TEST_IMAGES).write_bytes(b"half of it")
    loads(cache)


def test_a_given_folder_is_filled(server: Server, cache: Path, tmp_path: Path) -> None:
    """One that cannot be made is named."""
    load_mnist("test", tmp_path / "mine")
    assert sorted(os.listdir(tmp_path / "mine")) == [TEST_IMAGES, TEST_LABELS]
    assert not cache.exists()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DiskError, match="mnist could not be made: Not a directory"):
        load_mnist("test", tmp_path / "file" / "mnist")


def test_several_at_once_bring_files_once(server: Server, cache: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(load_mnist, ["test"] * 4))
    assert [len(digits.labels) for digits in found] == [3] * 4
    assert len(server.asked) == 2
