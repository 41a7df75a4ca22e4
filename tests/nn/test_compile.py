"""Layers under `torch.compile` without graph breaks, `torch.export` and `torch.jit.script`.

In one process of its own, for the import alone takes seconds, and the checks of annotations that
tests run with cannot be compiled.
"""

import json
import subprocess
import sys
import textwrap

import pytest

START = """
import json, traceback
import torch
import sparsewire as sw

def check(layer, *shapes, modes=("rounded", "sampled", "expected"), backend="eager"):
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    for shape in shapes:
        x = torch.randn(shape)
        for mode in modes:
            results = []
            for each in (layer, compiled):
                torch.manual_seed(1)
                y = each(x, mode=mode)
                y.square().sum().backward()
                gradients = [p.grad for p in layer.parameters() if p.grad is not None]
                results.append([y, *gradients])
                layer.zero_grad()
            for got, want in zip(*results, strict=True):
                torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-4)  # engines may differ

def adaptive():
    net = torch.nn.Sequential(torch.nn.Linear(5, 24), torch.nn.Unflatten(-1, (6, 4)))
    return sw.HyperLayer(net, (5,), (4,))
"""

CASES = {
    "free": "check(sw.SparseLayer((5,), (4,), tuples=6), (3, 5))",
    "template": """
template = sw.fan_in((3,), (2, 3))
check(sw.SparseLayer((2, 3), (3,), template=template, bias=True), (3, 2, 3))
""",
    "lower": "check(sw.HyperLayer(sw.LowerTriangular(6), (5,), (4,)), (3, 5))",
    "banded": "check(sw.HyperLayer(sw.Banded(1, 1, 6), (5,), (4,)), (3, 5))",
    "blocks": "check(sw.HyperLayer(sw.BlockDiagonal(2, 3), (6,), (4,)), (3, 6))",
    "convolution": "check(sw.HyperLayer(sw.Convolution((3,), 4), (2, 5), (3, 5)), (3, 2, 5))",
    "large enough for parts": """
layer = sw.SparseLayer((70,), (80,), tuples=100)
check(layer, (300, 70), modes=("sampled",), backend="aot_eager")
""",
    "other sizes": "check(sw.SparseLayer((None,), (4,), tuples=6), (3, 5), (3, 8))",
    "several wirings": """
layer = sw.SparseLayer((5,), (4,), tuples=6, wirings=2)
check(layer, (4, 5), (7, 5), modes=("sampled",))
""",
    "one wiring each": "check(adaptive(), (4, 5), (7, 5))",
    "rewired": """
layer = sw.SparseLayer((8,), (8,), tuples=4)
rewire = sw.Rewire(layer, torch.optim.Adam(layer.parameters()))
try:
    torch.compile(layer, backend="eager", fullgraph=True)(torch.randn(2, 8))
except RuntimeError as error:
    assert "Rewire reads gradients inside the layer, which cannot be compiled" in str(error)
else:
    raise AssertionError("not refused")
""",
    "exported": """
for layer in (
    sw.SparseLayer((5,), (4,), tuples=6, bias=True, wirings=2), adaptive(), sw.Glimpse((1, 8, 8), 4)
):
    layer.eval()
    x = torch.randn(8, 1, 8, 8) if isinstance(layer, sw.Glimpse) else torch.randn(8, 5)
    shapes = {"x": {0: torch.export.Dim("b")}}
    program = torch.export.export(layer, (x[:3],), dynamic_shapes=shapes).module()
    for batch in (1, 3, 8):
        torch.testing.assert_close(program(x[:batch]), layer(x[:batch]))
""",
    "frozen": """
layer = sw.SparseLayer((70,), (80,), tuples=100, bias=True).freeze(trainable=True)
compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
for batch in (300, 3):  # the first is large enough for a product of matrices
    x = torch.randn(batch, 70, requires_grad=True)
    results = []
    for each in (layer, compiled):
        y = each(x)
        results.append([y, *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
""",
    "frozen and scripted": """
for layer in (
    sw.SparseLayer((2, 3), (4, 2), tuples=6, bias=True),
    sw.SparseLayer((5,), (), tuples=3, features=2),
    sw.SparseLayer((), (5,), tuples=3),
):
    for frozen in (layer.freeze(), layer.freeze(trainable=True)):
        scripted = torch.jit.script(frozen)
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            x = torch.randn(2, 3, *layer.in_shape, *[2] * layer.features, dtype=dtype)
            assert torch.equal(scripted(x), frozen(x))
""",
}

CASE = """
def case():
{body}
try:
    case()
    results["{name}"] = "agrees"
except Exception:
    results["{name}"] = traceback.format_exc()
"""


@pytest.fixture(scope="module")
def results() -> dict[str, str]:
    """For each case, whether it agrees or where it failed."""
    cases = (
        CASE.format(name=name, body=textwrap.indent(code, "    ")) for name, code in CASES.items()
    )
    script = "\n".join([START, "results = {}", *cases, "print(json.dumps(results))"])
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout)


@pytest.mark.parametrize("case", CASES)
def test_compiled_layers_agree(case: str, results: dict[str, str]) -> None:
    assert results[case] == "agrees", results[case][-3000:]
