"""One browser for all tests here; it must be there, since these tests run only if asked for."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.tests.browser.devtools import Browser, Page, find_chromium


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find_chromium()
    if program is None:
        pytest.fail("Chromium is needed and was not found; the variable CHROMIUM may name one")
    with Browser(program, Path(tmp_path_factory.mktemp("profile"))) as found:
        yield found


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A new page; whatever it is used for, nothing may go wrong in it, and nothing be fetched."""
    found = browser.page()
    yield found
    found.run("1")  # what happened before is noted then
    elsewhere = [url for url in found.requests if not url.startswith(("file:", "data:"))]
    problems = list(found.problems)
    found.close()
    assert (problems, elsewhere) == ([], [])
