"""No test here reaches the network, the cache of the user, or an npm that is really one."""

from pathlib import Path

import pytest
from lab.tests.data.little import DIGESTS

from sparsewire_lab.data import mnist


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Where MNIST is kept if no folder is given."""
    return tmp_path / "data" / "mnist"


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """The one folder on PATH."""
    return tmp_path / "bin"


@pytest.fixture(autouse=True)
def _little_world(
    monkeypatch: pytest.MonkeyPatch, cache: Path, programs: Path, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPARSEWIRE_DATA", str(cache.parent))
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(mnist, "MIRRORS", ())
    monkeypatch.setattr(mnist, "DIGESTS", DIGESTS)
    monkeypatch.setattr(mnist, "HELD_OUT", 2)
    monkeypatch.chdir(tmp_path)
