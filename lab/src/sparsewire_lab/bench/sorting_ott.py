"""Soft sorts of OTT, which are JAX's: compiled with their gradient, on the CPU."""

import functools
import importlib
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sparsewire_lab.bench.sorting_problems import SortingProblem

_FUNCTIONS = {"soft_sort": "sort", "soft_rank": "ranks"}
# By default a gradient is that of a linear system, which often cannot be solved in float32.
STEPS = 100
NOTE = f"{STEPS} steps, unrolled"


def ott_calls(
    case: str, problem: SortingProblem
) -> tuple[Callable[[], Tensor], Callable[[], list[Tensor]]]:
    """Return what computes a forward pass, and what computes a forward and a backward pass.

    Args:
        case: `"soft_sort"` or `"soft_rank"`.
        problem: Its keys and its gradient are used.
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
    keys, weight = (jax.numpy.asarray(t.detach().numpy()) for t in (problem.keys, problem.weight))

    @jax.jit
    def alone(x: Any) -> Any:
        return function(x)

    @jax.jit
    def with_gradient(x: Any, slope: Any) -> Any:
        found, pull = jax.vjp(function, x)
        return found, *pull(slope)

    def forward() -> Tensor:
        return _as_tensor(jax.block_until_ready(alone(keys)))

    def both() -> list[Tensor]:
        return [_as_tensor(each) for each in jax.block_until_ready(with_gradient(keys, weight))]

    return forward, both


def _use_as_many_threads(count: int) -> None:
    """Tell XLA how many threads torch has; it listens only before it is loaded."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("PJRT_NPROC", str(count))
    if count == 1:
        os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")


def _as_tensor(found: Any) -> Tensor:
    return torch.from_dlpack(found)
