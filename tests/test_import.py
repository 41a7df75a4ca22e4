"""What an import brings: the public names, and nothing but torch and numpy."""

import importlib.metadata
import subprocess
import sys
from typing import Literal, get_origin

import pytest

import sparsewire
from sparsewire import ops, sorting

# What torch and numpy import does not count, nor does the standard library.
SCRIPT = """
import sys
import numpy, torch
before = set(sys.modules)
import sparsewire
new = set(sys.modules) - before
tops = {name.partition(".")[0] for name in new}
print(*sorted(tops - set(sys.stdlib_module_names) - {"torch", "numpy", "sparsewire"}))
print(*sorted(name for name in new if name.startswith(("torch.", "numpy."))))
print(*sorted(name for name in new if "_triton" in name))
"""


def test_importing_loads_nothing_but_torch_numpy_and_the_library():
    """No lab, no compiler (torch._dynamo, torch._inductor), no Triton and no kernel, no SciPy."""
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    assert result.stdout == "\n\n\n"
    assert result.stderr == ""


@pytest.mark.parametrize("module", [sparsewire, ops, sorting], ids=lambda module: module.__name__)
def test_public_names_exist_and_are_documented(module):
    assert module.__all__ == sorted(set(module.__all__))
    for name in module.__all__:
        value = getattr(module, name)
        assert value.__doc__ or get_origin(value) is Literal, name


def test_the_version_is_that_of_the_package():
    assert importlib.metadata.version("sparsewire") == sparsewire.__version__
