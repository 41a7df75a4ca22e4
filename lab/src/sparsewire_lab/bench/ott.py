"""Soft sorts of OTT, compiled by JAX with their gradient, on the CPU."""

import functools
import importlib
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sparsewire_lab.bench.problems import Problem

_FUNCTIONS = {"soft_sort": "sort", "soft_rank": "ranks"}
# The default gradient solves a linear system, which often fails in float32.
STEPS = 100
NOTE = f"{STEPS} steps, unrolled"


def ott_calls(
    case: str, problem: Problem
) -> tuple[Callable[[], Tensor], Callable[[], list[Tensor]]]:
    """Return a call of the forward pass, and one of the forward and the backward pass.

    Args:
        case: `"soft_sort"` or `"soft_rank"`.
        problem: Gives the keys, and the gradient of the output.
    """
    _use_as_many_threads(torch.get_num_threads())
    jax: Any = importlib.import_module("jax")
    start = importlib.import_module("ott.initializers.linear.initializers").DefaultInitializer()
    function = functools.partial(
        getattr(importlib.import_module("ott.tools.soft_sort"), _FUNCTIONS[case]),
        axis=-1,
        implicit_diff=None,
        min_iterations=STEPS,
        max_iterations=STEPS,
        initializer=start,
    )
    tensors = problem.inputs["keys"], problem.weight
    keys, weight = (jax.numpy.asarray(t.detach().numpy()) for t in tensors)

    @jax.jit
    def alone(x: Any) -> Any:
        return function(x)

    @jax.jit
    def with_gradient(x: Any, slope: Any) -> Any:
        result, pull = jax.vjp(function, x)
        return result, *pull(slope)

    def forward() -> Tensor:
        return torch.from_dlpack(jax.block_until_ready(alone(keys)))

    def both() -> list[Tensor]:
        results = jax.block_until_ready(with_gradient(keys, weight))
        return [torch.from_dlpack(each) for each in results]

    return forward, both


def _use_as_many_threads(count: int) -> None:
    """Give XLA as many threads as torch; it reads these variables only when it is loaded."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("PJRT_NPROC", str(count))
    if count == 1:
        os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
