"""Layers under `torch.compile`, without graph breaks.

In processes of their own: the checks of annotations that tests run with cannot be compiled.
"""

import subprocess
import sys

import pytest

START = """
import torch
import sparsewire as sw

def check(layer, *shapes, backend="eager"):
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    for shape in shapes:
        x = torch.randn(shape)
        for mode in ("rounded", "sampled", "expected"):
            results = []
            for each in (layer, compiled):
                torch.manual_seed(1)
                y = each(x, mode=mode)
                y.square().sum().backward()
                gradients = [p.grad for p in layer.parameters() if p.grad is not None]
                results.append([y, *gradients])
                layer.zero_grad()
            for got, want in zip(*results, strict=True):
                torch.testing.assert_close(got, want)
"""

CASES = {
    "every kind": """
layers = [
    sw.SparseLayer((5,), (4,), tuples=6),
    sw.SparseLayer((2, 3), (3,), template=sw.fan_in((3,), (2, 3)), bias=True),
    sw.HyperLayer(sw.LowerTriangular(6), (5,), (4,)),
    sw.HyperLayer(sw.Banded(1, 1, 6), (5,), (4,)),
    sw.HyperLayer(sw.BlockDiagonal(2, 3), (6,), (4,)),
    sw.HyperLayer(sw.Convolution((3,), 4), (2, 5), (3, 5)),
]
for layer in layers:
    torch._dynamo.reset()
    check(layer, (3, *layer.in_shape))
""",
    "large enough for parts": """
check(sw.SparseLayer((70,), (80,), tuples=100), (300, 70), backend="aot_eager")
""",
    "other sizes": """
check(sw.SparseLayer((5,), (4,), tuples=6), (3, 5))
check(sw.SparseLayer((7,), (2,), tuples=4), (3, 7))
torch._dynamo.reset()
check(sw.SparseLayer((None,), (4,), tuples=6), (3, 5), (3, 6), (3, 8))
""",
    "several wirings": """
check(sw.SparseLayer((5,), (4,), tuples=6, wirings=2), (4, 5), (6, 5), (7, 5))
""",
    "one wiring each": """
source = torch.nn.Sequential(torch.nn.Linear(5, 24), torch.nn.Unflatten(-1, (6, 4)))
check(sw.HyperLayer(source, (5,), (4,)), (4, 5), (6, 5), (7, 5))
""",
}


@pytest.mark.parametrize("case", CASES)
def test_compiled_layers_agree(case):
    script = START + CASES[case]
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]
