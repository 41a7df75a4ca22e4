"""The kernel of `fused_gather`: numbers far from ordinary, and when it is used.

`test_engines_agree.py` compares it with the stages one by one, from the same sampled tuples.
"""

import importlib
import math
from typing import Any

import pytest
import torch
from tests.agreement import CASES, gather_by_stages, outcome
from tests.helpers import sizes_kept
from tests.kernels.compare import dtypes
from torch import Tensor

import sparsewire as sw
from sparsewire.ops.density import FARTHEST, SHARPEST
from sparsewire.ops.fused_gather import fused_gather, kernel_gathers

stage = importlib.import_module("sparsewire.ops.fused_gather")


def call_of(dtype: torch.dtype = torch.float64, **options: Any) -> dict[str, Any]:
    """Arguments of `fused_gather`: of two axes, and five contexts for each of three inputs."""
    case = CASES["fused_gather"]
    row = {name: values[0] for name, values in case.axes.items()}
    dtypes = dict.fromkeys(("means", "values", "x"), dtype)
    return case.make({**row, **dtypes, "contexts": (3, 5), **options})


def by_kernel(call: dict[str, Any], device: str) -> dict[str, Tensor]:
    return outcome(fused_gather, call, "triton", device)


@pytest.mark.parametrize("dtype", dtypes, ids=str)
def test_absurd_numbers(dtype, device):
    call = call_of(dtype)
    call["means"][0, 0] = 10 * FARTHEST[dtype]
    call["means"][0, 1, 1] = -10 * FARTHEST[dtype]
    call["variances"][0, 2] = 0.1 * SHARPEST[dtype]
    call["variances"][0, 3] = 1e30
    got = by_kernel(call, device)
    for name, tensor in got.items():
        assert tensor.isfinite().all(), name
    want = outcome(gather_by_stages, call, "triton", device)["output"]
    torch.testing.assert_close(got["output"], want, rtol=1e-5, atol=1e-5)
    # Numbers that were brought into range have no gradient.
    assert (got["gradient of means"][0, 0] == 0).all()
    assert (got["gradient of variances"][0, 2] == 0).all()


@pytest.mark.parametrize("bad", ["means", "variances", "values"])
@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_bad_numbers_stay_in_their_context(bad, number, device):
    call = call_of()
    good = by_kernel(call, device)
    call[bad].view(3, 5, -1)[1, 2, 0] = number
    got = by_kernel(call, device)
    others = torch.ones(3, 5, dtype=torch.bool)
    others[1, 2] = False
    if math.isnan(number):
        assert got["output"][1, 2].isnan()
    for name in got.keys() - {"gradient of x"}:
        assert torch.equal(got[name][others], good[name][others]), name


def test_nothing_of_the_samples_is_saved(device):
    w, c, r, n = 3, 40, 2, 3 * 9 * 8
    call = call_of(contexts=(w, c), local_samples=20, global_samples=20)
    with sizes_kept() as kept:
        by_kernel(call, device)
    assert kept
    assert max(kept) <= max(w * c * r, w * n)
    assert sum(size for size in kept if size != w * n) <= 10 * w * c * r


def test_what_the_kernel_takes(device, monkeypatch):
    there = torch.device(device)
    with sw.engine("triton"):
        assert kernel_gathers(there, 10**4, (100, 100), (20, 20), 64)
        assert not kernel_gathers(there, 10**4, (100, 100), (22, 20), 64)  # 24 · 22 cells
        assert kernel_gathers(there, 10**4, (1000, 3), (168, 1), 0)  # 170 · 3 cells
        assert not kernel_gathers(there, 10**4, (1000, 3), (169, 1), 0)
        assert not kernel_gathers(there, 10**4, (100, 100), (20, 20), 65)
        assert not kernel_gathers(there, 10**4, (2**16, 2**15), (3, 3), 1)
        assert not kernel_gathers(there, 2**31, (100, 100), (20, 20), 64)
        monkeypatch.setattr(stage, "deterministic", lambda _: True)
        assert not kernel_gathers(there, 10**4, (100, 100), (20, 20), 64)
    with sw.engine("chunked"):
        assert not kernel_gathers(there, 10**4, (10,), (3,), 4)
