"""Where the kernels run: on a GPU, or slowly on the CPU with TRITON_INTERPRET=1; nowhere else."""

import importlib.util
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"

# What the interpreter's NumPy says of lanes that a mask throws away, and of NaN that are wanted.
HARMLESS = (
    "overflow encountered in",
    "invalid value encountered in",
    "divide by zero encountered in",
    "All-NaN slice encountered",
)


def _why_not() -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "the kernels need the package triton"
    if not INTERPRETED and not torch.cuda.is_available():
        return "the kernels need a CUDA device, or TRITON_INTERPRET=1"
    return None


WHY_NOT = _why_not()


class _Absent(pytest.File):
    """A file that is not even imported, for it would import the kernels."""

    def collect(self) -> Any:
        assert WHY_NOT is not None
        pytest.skip(WHY_NOT)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path, parent: pytest.Collector
) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Skip every file of this folder, with the reason, where kernels cannot run."""
    found = yield
    if WHY_NOT is None:
        return found
    tests = file_path.name.startswith("test_")
    return [_Absent.from_parent(parent, path=file_path)] if tests else []


def pytest_itemcollected(item: pytest.Item) -> None:
    if INTERPRETED:
        for what in HARMLESS:
            where = "triton.runtime.interpreter"
            ignored = f"ignore:{what}:RuntimeWarning:{where}"
            item.add_marker(pytest.mark.filterwarnings(ignored))


@pytest.fixture
def device() -> str:
    """The device whose tensors the kernels take."""
    return DEVICE


@pytest.fixture(autouse=True)
def _order_of_sums() -> Iterator[None]:
    """On a GPU the kernels that add in any order are left out in deterministic mode.

    On the CPU it stays on: there it shows what no kernel has written.
    """
    torch.use_deterministic_algorithms(DEVICE == "cpu")
    yield
    torch.use_deterministic_algorithms(True)


@pytest.fixture(autouse=True)
def _full_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are compared with convolutions in float32, which are rounded to less by default."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
