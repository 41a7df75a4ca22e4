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
    """Return a call of the forward pass of `soft_sort` or `soft_rank`, and one of both passes."""
    # XLA gets as many threads as torch; it reads these variables only when it is loaded.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("PJRT_NPROC", str(torch.get_num_threads()))
    if torch.get_num_threads() == 1:
        os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
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

    def with_gradient(x: Any, slope: Any) -> Any:
        result, pull = jax.vjp(function, x)
        return result, *pull(slope)

    tensors = problem.inputs["keys"], problem.weight
    keys, weight = (jax.numpy.asarray(t.detach().numpy()) for t in tensors)
    alone, together = jax.jit(function), jax.jit(with_gradient)

    def both() -> list[Tensor]:
        return [torch.from_dlpack(x) for x in jax.block_until_ready(together(keys, weight))]

    return lambda: torch.from_dlpack(jax.block_until_ready(alone(keys))), both
