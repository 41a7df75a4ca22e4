"""The code that README and the documentation show really runs, page by page, top to bottom."""

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[str]:
    return BLOCK.findall(page.read_text())


def test_there_is_code_to_run() -> None:
    with_code = {page.name for page in PAGES if blocks(page)}
    assert {"README.md", "index.md", "layers.md", "constraints.md"} <= with_code


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda p: p.name)
def test_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"torch": torch, "__name__": "__page__"}
    for number, block in enumerate(blocks(page), start=1):
        exec(compile(block, f"{page.name}, block {number}", "exec"), names)
