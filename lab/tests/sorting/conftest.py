"""What the tests of the sorting experiment share."""

from pathlib import Path
from typing import Any

import pytest
from lab.tests.sorting.sorts import load_shapes

from sparsewire_lab.data import Digits, experiment
from sparsewire_lab.data.idx import Split


@pytest.fixture
def shapes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Path | None]]:
    """Easy shapes instead of digits; the splits that are asked for, and the folders given."""
    asked: list[tuple[str, Path | None]] = []

    def load(split: Split, folder: Path | None = None, **_: Any) -> Digits:
        asked.append((split, folder))
        return load_shapes(split)

    monkeypatch.setattr(experiment, "load_digits", load)
    monkeypatch.setattr(experiment, "load_mnist", load)
    return asked
