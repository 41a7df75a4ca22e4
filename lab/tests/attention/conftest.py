"""What the tests of the experiments share."""

from pathlib import Path

import pytest
from lab.tests.attention.glyphs import load_glyphs

from sparsewire_lab.data import Digits, experiment
from sparsewire_lab.data.idx import Split


@pytest.fixture
def glyphs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Easy shapes instead of digits; the splits that are asked for, as they come."""
    asked: list[str] = []

    def load(split: Split, folder: Path | None = None) -> Digits:
        del folder
        asked.append(split)
        return load_glyphs(split)

    monkeypatch.setattr(experiment, "load_digits", load)
    monkeypatch.setattr(experiment, "load_mnist", load)
    return asked
