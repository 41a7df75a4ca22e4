"""What an import brings: the public names, and nothing but torch and numpy."""

import importlib.metadata
import subprocess
import sys

import pytest

import sparsewire
from sparsewire import ops, sorting

# The libraries that torch itself imports do not count, nor do those of the standard library.
SCRIPT = """
import sys
import numpy, torch
before = set(sys.modules)
import sparsewire
tops = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(tops - set(sys.stdlib_module_names) - {"torch", "numpy", "sparsewire"}))
print(*sorted({"jaxtyping", "beartype", "matplotlib", "scipy"} & set(sys.modules)))
"""


def test_importing_needs_torch_and_numpy_only():
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    assert result.stdout == "\n\n"
    assert result.stderr == ""


@pytest.mark.parametrize("module", [sparsewire, ops, sorting], ids=lambda module: module.__name__)
def test_public_names_exist_and_are_documented(module):
    assert module.__all__ == sorted(set(module.__all__))
    for name in module.__all__:
        assert getattr(module, name).__doc__, name


def test_the_version_is_that_of_the_package():
    assert importlib.metadata.version("sparsewire") == sparsewire.__version__
