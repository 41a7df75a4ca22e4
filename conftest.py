"""What all tests and printed examples share: checked shapes, poisoned memory, fixed seeds."""

import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

import jaxtyping

# No examples to run there, and Triton, which these files import, is an extra.
collect_ignore_glob = ["*/_triton*"]


class PlainKernels(MetaPathFinder):
    """Leaves kernels unchecked: Triton compiles their source as it stands."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find modules of kernels, before the import hook does."""
        return PathFinder.find_spec(fullname, path, target) if "._triton" in fullname else None


# Before anything imports them: each call of library and lab checks its annotations, shapes too.
jaxtyping.install_import_hook(["sparsewire", "sparsewire_lab"], "beartype.beartype")
sys.meta_path.insert(0, PlainKernels())

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


@pytest.fixture
def any_order() -> Iterator[None]:
    """Allow sums in any order, as on a GPU; deterministic mode refuses some of them there."""
    torch.use_deterministic_algorithms(False)
    yield
    torch.use_deterministic_algorithms(True)
