"""Kernels are compiled for a GPU, also where there is none, and need no more than it has."""

import json
import os
import subprocess
import sys

_MOST = 232_448  # bytes of shared memory that a program may have on that GPU


def test_kernels_compile_and_fit():
    variables = {n: value for n, value in os.environ.items() if n != "TRITON_INTERPRET"}
    words = [sys.executable, "-m", "tests.kernels.compile_kernels"]
    result = subprocess.run(words, capture_output=True, text=True, check=False, env=variables)
    assert result.returncode == 0, result.stderr[-3000:]
    found = json.loads(result.stdout.splitlines()[-1])
    assert len(found) > 40
    assert {name: size for name, size in found.items() if size > _MOST} == {}
