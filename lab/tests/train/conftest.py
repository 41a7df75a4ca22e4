"""What the tests of the loop share."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.tests.train.toy import Toy, finished, without_times


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a run."""
    return tmp_path / "run"


@pytest.fixture
def whole(unchecked: None, tmp_path: Path) -> dict[str, Any]:
    """The end of a run that nothing stopped."""
    return without_times(finished(Toy(), tmp_path / "whole"))


@pytest.fixture(autouse=True)
def _handlers_stay() -> Iterator[None]:
    """Whatever a test does to signals, it leaves them as they were."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    yield
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
