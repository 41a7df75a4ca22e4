"""Nothing dense is ever stored: peak memory of large calls, each in a process of its own."""

import subprocess
import sys

import pytest

# Linux counts in kilobytes, macOS in bytes.
PEAK = """
import resource, sys
import torch

torch.set_num_threads(1)
unit = 1 if sys.platform == "darwin" else 1024

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
"""

LAYER = """
import sparsewire as sw
layer = sw.SparseLayer((2**20,), (2**20,), tuples=65536, context=64, schedule=None, seed=0)
y = layer(torch.randn(2**20))
y.square().sum().backward()
for name, parameter in layer.named_parameters():
    assert parameter.grad.isfinite().all() and parameter.grad.abs().sum() > 0, name
assert y.isfinite().all() and y.count_nonzero() > 65536
print(peak())
"""

SPREAD = """
from sparsewire.ops import spread, spread_reference
k, m, n = 1024, 24576, 1000
generator = torch.Generator().manual_seed(0)
means = (torch.rand(k, 2, generator=generator) * (n - 1)).requires_grad_()
variances = (torch.rand(k, 2, generator=generator) * n * 0.1 + 0.1).requires_grad_()
values = torch.randn(k, generator=generator).requires_grad_()
indices = torch.randint(n, (m, 2), generator=generator)
weights = torch.randn(m, generator=generator)
inputs = means, variances, values

def run(function, tensors, weights):
    out = function(*tensors, indices)
    return out.detach(), *torch.autograd.grad(out, tensors, weights)

small = [t[:8].detach().requires_grad_() for t in inputs]
run(spread, small, weights)  # what the first call loads is not what the call needs
before = peak()
single = run(spread, inputs, weights)
print(peak() - before)
wide = [t.detach().double().requires_grad_() for t in inputs]
double = run(spread_reference, wide, weights.double())
for name, a, b in zip(("output", "means", "variances", "values"), single, double):
    error = (a - b).abs().max().item() / max(1.0, b.abs().max().item())
    assert error < 1e-5, (name, error)
"""


@pytest.mark.parametrize(("script", "megabytes"), [(LAYER, 2048), (SPREAD, 100)])
def test_nothing_dense_is_stored(script, megabytes):
    """A matrix of 2⁴⁰ elements; and a table of 1,024 × 24,576 pairs, a copy of which is 96 MiB."""
    command = [sys.executable, "-c", PEAK + script]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) < megabytes * 2**20
