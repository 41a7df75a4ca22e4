"""What the tests of the experiments share."""

import pytest
from lab.tests.attention.glyphs import use_glyphs


@pytest.fixture
def glyphs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Easy shapes instead of digits; the splits that are asked for."""
    return use_glyphs(monkeypatch)
