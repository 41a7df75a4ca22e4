"""One browser for all tests here; it must be there, since these tests run only if asked for."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab.tests.browser.devtools import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    named = os.environ.get("CHROMIUM")
    program = next(filter(None, map(shutil.which, [named] if named else NAMES)), None)
    if program is None:
        pytest.fail("Chromium is needed and was not found; the variable CHROMIUM may name one")
    found = Browser(program, Path(tmp_path_factory.mktemp("profile")))
    yield found
    found.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A new page; whatever it is used for, nothing may go wrong in it, and nothing be fetched."""
    found = Page(browser)
    yield found
    found.run("1")  # what happened before is noted then
    elsewhere = [url for url in found.requests if not url.startswith(("file:", "data:"))]
    found.close()
    assert (found.problems, elsewhere) == ([], [])
