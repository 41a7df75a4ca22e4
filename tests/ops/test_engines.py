import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from tests.helpers import seeded
from torch import Tensor

import sparsewire as sw
from sparsewire import engines as _engines
from sparsewire.engines import VARIABLE, chosen
from sparsewire.ops import mark_repeats
from sparsewire.ops.spread import _chunked

PLAIN = ("reference", "chunked", "grid")


@pytest.fixture(autouse=True)
def _no_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Triton's interpreter the kernels do not run on the CPU, installed or not."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


# Which engine is chosen.


def started_with(value: str | None, code: str) -> subprocess.CompletedProcess[str]:
    """Run Python with this value of the environment variable, or without it."""
    surroundings = {name: text for name, text in os.environ.items() if name != VARIABLE}
    if value is not None:
        surroundings[VARIABLE] = value
    return subprocess.run(
        [sys.executable, "-c", code], env=surroundings, capture_output=True, text=True, check=False
    )


def test_the_environment_chooses_for_a_process():
    code = """
import importlib, os
from sparsewire import engines as _engines
print(_engines.chosen())
with _engines.engine("chunked"):
    print(_engines.chosen())
print(_engines.chosen())
for value in ("", "grid"):  # as at the start of other processes
    os.environ["SPARSEWIRE_ENGINE"] = value
    print(importlib.reload(_engines).chosen())
del os.environ["SPARSEWIRE_ENGINE"]
print(importlib.reload(_engines).chosen())
"""
    result = started_with("reference", code)
    assert result.returncode == 0, result.stderr
    wanted = ["reference", "chunked", "reference", "auto", "grid", "auto"]
    assert result.stdout.split() == wanted


def test_a_bad_value_in_the_environment_is_refused_at_once():
    result = started_with("cuda", "import sparsewire")
    assert result.returncode != 0
    message = "ValueError: SPARSEWIRE_ENGINE must be one of 'auto', 'reference', 'chunked', "
    assert message in result.stderr
    assert result.stderr.strip().endswith("got 'cuda'")


def test_choices_nest_and_end():
    outside = chosen()
    with sw.engine("reference"):
        with sw.engine("chunked"):
            assert chosen() == "chunked"
        assert chosen() == "reference"
    with pytest.raises(KeyError, match="mine"), sw.engine("reference"):
        raise KeyError("mine")
    assert chosen() == outside


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", ["", "Triton", "cuda", None, 3])
def test_unknown_names_are_refused_and_change_nothing(name: Any):
    outside = chosen()
    with pytest.raises(ValueError, match=r"name must be one of 'auto', .*; got"), sw.engine(name):
        pytest.fail("the block must not run")
    assert chosen() == outside


# Where kernels run.


def test_kernels_on_the_cpu_are_refused(monkeypatch):
    monkeypatch.setattr(_engines, "_TRITON", True)
    message = (
        r"the engine 'triton' needs tensors on a CUDA device \(or TRITON_INTERPRET=1 in the "
        r"environment, to run the kernels slowly on the CPU\); got cpu"
    )
    with sw.engine("triton"), pytest.raises(RuntimeError, match=message):
        sw.SparseLayer((5,), (4,), tuples=6)(torch.randn(3, 5))


def test_without_triton_the_error_says_so(monkeypatch):
    monkeypatch.setattr(_engines, "_TRITON", False)
    with (
        sw.engine("triton"),
        pytest.raises(RuntimeError, match="needs the package triton, which comes with CUDA builds"),
    ):
        mark_repeats(torch.zeros(3, 2, dtype=torch.int64), (3, 3))


@pytest.mark.parametrize(
    ("name", "device", "interpreted", "installed", "expected"),
    [
        ("auto", "cuda", False, True, True),
        ("auto", "cuda", False, False, False),
        ("auto", "cpu", False, True, False),
        ("auto", "cpu", True, True, False),  # the interpreter is for tests, and must be asked for
        ("triton", "cuda", False, True, True),
        ("triton", "cpu", True, True, True),
        ("triton", "cpu", False, True, None),
        ("triton", "cuda", False, False, None),
        ("triton", "meta", True, True, None),
        *((name, "cuda", True, True, False) for name in PLAIN),
    ],
)
def test_who_uses_kernels(name, device, interpreted, installed, expected, monkeypatch):
    """None stands for an error: a wish that cannot be met."""
    monkeypatch.setattr(_engines, "_TRITON", installed)
    if interpreted:
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    with sw.engine(name):
        if expected is None:
            with pytest.raises(RuntimeError, match="the engine 'triton' needs"):
                _engines.kernels_run(torch.device(device))
        else:
            assert _engines.kernels_run(torch.device(device)) == expected


def test_only_sums_on_a_gpu_lack_an_order():
    assert torch.are_deterministic_algorithms_enabled()
    assert _engines.deterministic(torch.device("cuda"))
    assert not _engines.deterministic(torch.device("cpu"))
    try:
        torch.use_deterministic_algorithms(False)
        assert not _engines.deterministic(torch.device("cuda"))
    finally:
        torch.use_deterministic_algorithms(True)


# The same numbers.


def results(name: Any) -> dict[str, Tensor]:
    """Output and gradients of a layer that draws nothing, in float64."""
    layer = sw.SparseLayer((9,), (7,), tuples=15, seed=0).double()
    x = torch.randn(4, 9, dtype=torch.float64, generator=seeded(0), requires_grad=True)
    with sw.engine(name):
        y = layer(x, mode="expected")
        y.square().sum().backward()
    named = {n: p.grad for n, p in layer.named_parameters() if p.grad is not None}
    assert x.grad is not None
    assert len(named) == 3
    return {"y": y.detach(), "x": x.grad, **named}


@pytest.mark.parametrize(("name", "chunks"), [("chunked", True), ("reference", False)])
def test_the_engine_that_is_named_computes(name, chunks, monkeypatch):
    """Even for a table so small that another one would be chosen."""
    calls = []
    forward = _chunked.ChunkedSpread.forward

    def counted(*inputs: Any) -> Tensor:
        calls.append("chunked")
        return forward(*inputs)

    monkeypatch.setattr(_chunked.ChunkedSpread, "forward", staticmethod(counted))
    results(name)
    assert bool(calls) == chunks


def test_the_backward_pass_keeps_the_engine_of_its_forward_pass():
    """A block that ends before the backward pass changes none of its numbers."""
    layer = sw.SparseLayer((9,), (7,), tuples=15, seed=0).double()
    x = torch.randn(4, 9, dtype=torch.float64, generator=seeded(0))
    with sw.engine("chunked"):
        y = layer(x, mode="expected")
    with sw.engine("triton"):  # which would be refused here
        y.square().sum().backward()
    wanted = results("chunked")
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, wanted[name], rtol=0, atol=0)
