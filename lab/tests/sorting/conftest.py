"""What the tests of the sorting experiment share."""

import pytest
from lab.tests.sorting.sorts import use_shapes


@pytest.fixture
def shapes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Easy shapes instead of digits; the splits that are asked for."""
    return use_shapes(monkeypatch)
