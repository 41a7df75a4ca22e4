"""What all tests and printed examples share: checked shapes, poisoned memory, fixed seeds."""

from collections.abc import Iterator
from pathlib import Path

import jaxtyping

SOURCE = Path(__file__).parent / "src"

# No examples to run there, and Triton, which these files import, is an extra.
collect_ignore_glob = ["src/sparsewire/ops/_triton/*"]


def checked_modules() -> list[str]:
    """All modules of the library but the kernels: Triton compiles their source as it stands."""
    files = (file.relative_to(SOURCE) for file in SOURCE.glob("sparsewire/**/*.py"))
    return [
        ".".join(file.with_suffix("").parts)
        for file in files
        if file.name not in ("__init__.py", "__main__.py", "exp_kernel.py")
        and "_triton" not in file.parts
    ]


# Before anything imports sparsewire: each of its calls now checks its annotations, shapes too.
jaxtyping.install_import_hook(checked_modules(), "beartype.beartype")

import hypothesis  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
import tyro  # noqa: E402, F401  # now, for it fails where a printed example has left a list in `_`

torch.set_num_threads(1)

# Deterministic mode fills what `torch.empty` returns: floats with NaN, integers with their maximum.
# An element that nobody writes then shows at once.
torch.use_deterministic_algorithms(True)

hypothesis.settings.register_profile(
    "repeatable", derandomize=True, deadline=None, max_examples=40, database=None
)
hypothesis.settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def _same_randomness() -> None:
    """Start every test from the same seed."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _names_in_examples(doctest_namespace: dict[str, object]) -> None:
    """Let printed examples say `torch` without importing it."""
    doctest_namespace["torch"] = torch


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Leave annotations unchecked, so that bad arguments reach the checks of the library."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
