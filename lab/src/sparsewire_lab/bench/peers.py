"""Every engine of every function that is measured: ours, and its peers.

An engine takes the inputs of a problem, in order. Peers have the options they have by default.
Most peers of sorting compute a matrix P, of which rows are places and columns elements; it is
applied to the values, its transpose to the places. Where an order is known, the loss of a matrix is
the cross-entropy of its rows, that of ranks their squared error.
"""

import functools
import importlib
import importlib.util
import math
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import sparsewire as sw
from sparsewire import ops
from sparsewire_lab.bench import cases
from sparsewire_lab.bench.cases import Case
from sparsewire_lab.sorting import peers as sorters

Engine = Callable[..., Tensor]
Matrix = Callable[[Tensor], Tensor]

# Beside this every real logit is large, and float32 has room to add to it.
_HIDDEN = -1e9
_STEEPNESS = 10.0
_LEAST = 1e-20  # of a probability, where its logarithm is taken
OTT_STEPS = 100


def absent() -> list[str]:
    """Return the engines whose package is not installed."""
    modules = [(name, module) for name, (module, _) in cases.PACKAGES.items()]
    return [name for name, module in modules if importlib.util.find_spec(module) is None]


def engine_of(case: Case) -> Engine:
    """Return what computes a case; engines of ours are chosen around the call, by `sw.engine`."""
    if case.case in ("spread", cases.FEW):
        if case.engine in cases.OWN_ENGINES:
            exact = case.variant == cases.ALL_PAIRS
            return functools.partial(ops.spread, tolerance=0.0) if exact else ops.spread
        if case.engine in SPREAD:
            return SPREAD[case.engine]
    elif case.engine in MATRIX_OF:
        return functools.partial(_BY_MATRIX[case.case], MATRIX_OF[case.engine])
    elif case.case in (others := _SORTS.get(case.engine, {})):
        return others[case.case]
    raise ValueError(f"engine must be one that computes {case.case}; got {case.engine!r}")


def plain(
    means: Tensor, variances: Tensor, values: Tensor, indices: Tensor, excluded: Tensor
) -> Tensor:
    """Spread as one would write it first: the whole table, and a softmax over it."""
    steps = indices.to(means.dtype)[None, :, :] - means[:, None, :]
    logits = -0.5 * (steps**2 / variances[:, None, :]).sum(-1)
    table = logits.masked_fill(excluded, float("-inf")).softmax(-1)
    return values @ table


def keops(
    means: Tensor, variances: Tensor, values: Tensor, indices: Tensor, excluded: Tensor
) -> Tensor:
    """Spread with KeOps: a symbolic table, reduced twice without being stored."""
    symbol: Any = importlib.import_module("pykeops.torch").LazyTensor
    mean, precision = symbol(means[:, None, :]), symbol(variances.reciprocal()[:, None, :])
    point = symbol(indices.to(means.dtype)[None, :, :])
    hidden = symbol((excluded.to(means.dtype) * _HIDDEN)[None, :, None])
    logits = ((mean - point) ** 2 * precision).sum(-1) * -0.5 + hidden
    total = symbol(logits.logsumexp(dim=1)[:, None, :])
    shared = ((logits - total).exp() * symbol(values[:, None, None])).sum(dim=0)
    return shared.squeeze(-1).masked_fill(excluded, 0)


def bitonic_values(keys: Tensor, steepness: float = _STEEPNESS) -> Tensor:
    """Sort numbers by a bitonic network as `sorting.peers` has it, but without a matrix."""
    n, block = keys.shape[-1], 2
    while block <= n:
        apart = block // 2
        while apart:
            a, b = keys.unflatten(-1, (-1, 2, apart)).unbind(-2)
            starts = torch.arange(0, n, 2 * apart, device=keys.device)
            sign = torch.where((starts & block) == 0, steepness, -steepness).to(keys.dtype)
            swap = 0.5 - torch.atan(sign.unsqueeze(-1) * (b - a)) / math.pi
            moved = swap * (b - a)
            keys = torch.stack([a + moved, b - moved], dim=-2).flatten(-3)
            apart //= 2
        block *= 2
    return keys


# The default gradient of OTT solves a linear system, which often fails in float32.
def ott_calls(
    case: str, keys: Tensor, weight: Tensor
) -> tuple[Callable[[], Tensor], Callable[[], list[Tensor]]]:
    """Return a call of OTT's soft sort or ranks, compiled by JAX, and one with its gradient."""
    # XLA gets as many threads as torch; it reads these variables only when it is loaded.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("PJRT_NPROC", str(torch.get_num_threads()))
    if torch.get_num_threads() == 1:
        os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    jax: Any = importlib.import_module("jax")
    start = importlib.import_module("ott.initializers.linear.initializers").DefaultInitializer()
    function = functools.partial(
        getattr(
            importlib.import_module("ott.tools.soft_sort"),
            {"soft_sort": "sort", "soft_rank": "ranks"}[case],
        ),
        axis=-1,
        implicit_diff=None,
        min_iterations=OTT_STEPS,
        max_iterations=OTT_STEPS,
        initializer=start,
    )

    def with_gradient(x: Any, slope: Any) -> Any:
        result, pull = jax.vjp(function, x)
        return result, *pull(slope)

    inputs = [jax.numpy.asarray(t.detach().numpy()) for t in (keys, weight)]
    alone, together = jax.jit(function), jax.jit(with_gradient)

    def both() -> list[Tensor]:
        return [torch.from_dlpack(x) for x in jax.block_until_ready(together(*inputs))]

    return lambda: torch.from_dlpack(jax.block_until_ready(alone(inputs[0]))), both


def _places(keys: Tensor) -> Tensor:
    return torch.arange(keys.shape[-1], dtype=keys.dtype, device=keys.device)


def _loss_by_matrix(matrix: Matrix, keys: Tensor, given: Tensor) -> Tensor:
    order = given.argsort(dim=-1, stable=True).unsqueeze(-1)
    return -matrix(keys).gather(-1, order).clamp_min(_LEAST).log().sum((-1, -2))


def _hard_ranks(keys: Tensor, _: Tensor) -> Tensor:
    index = keys.argsort(dim=-1)
    # Zeros that depend on the keys: there is a backward pass to time.
    return torch.empty_like(keys).scatter(-1, index, _places(keys).expand_as(keys)) + keys * 0


def _hard_payload(keys: Tensor, given: Tensor) -> Tensor:
    index = keys.argsort(dim=-1).unsqueeze(-1)
    flat = given.flatten(2)
    return flat.gather(1, index.expand_as(flat)).view_as(given) + keys.sum() * 0


def _list_mle(keys: Tensor, given: Tensor) -> Tensor:
    inorder = keys.gather(-1, given.argsort(dim=-1, stable=True))
    return (inorder.logcumsumexp(-1) - inorder).sum(-1)


def _our_loss(reach: int | None, keys: Tensor, given: Tensor) -> Tensor:
    return sw.order_loss(keys, given, reach=reach, reduction="none")


def _torchsort(name: str, keys: Tensor, _: Tensor) -> Tensor:
    return getattr(importlib.import_module("torchsort"), name)(keys)


def _torchsort_loss(keys: Tensor, given: Tensor) -> Tensor:
    # Its ranks begin with 1.
    right = given.argsort(dim=-1, stable=True).argsort(dim=-1) + 1
    return (_torchsort("soft_rank", keys, given) - right).square().sum(-1)


def _diffsort(network: str, keys: Tensor) -> Tensor:
    return _network(network, keys.shape[-1], str(keys.device))(keys)[1].mT


@functools.lru_cache(maxsize=1)
def _network(network: str, n: int, device: str) -> Any:
    return importlib.import_module("diffsort").DiffSortNet(network, n, device=device)


SPREAD: dict[str, Engine] = {"plain": plain, cases.KEOPS: keops}
MATRIX_OF: dict[str, Matrix] = {
    "softsort": sorters.soft_sort_matrix,
    "neuralsort": sorters.neural_sort,
    "sinkhorn": sorters.sinkhorn_sort,
    "odd-even": functools.partial(sorters.network_sort, network="odd_even"),
    "bitonic": functools.partial(sorters.network_sort, network="bitonic"),
    **{name: functools.partial(_diffsort, network) for name, network in cases.NETWORKS.items()},
}
_BY_MATRIX: dict[str, Callable[[Matrix, Tensor, Tensor], Tensor]] = {
    "soft_sort": lambda matrix, keys, _: (matrix(keys) @ keys.unsqueeze(-1)).squeeze(-1),
    "soft_rank": lambda matrix, keys, _: _places(keys) @ matrix(keys),
    "sort_by": lambda matrix, keys, given: (matrix(keys) @ given.flatten(2)).view_as(given),
    "order_loss": _loss_by_matrix,
}
_SORTS: dict[str, dict[str, Engine]] = {
    cases.OURS: {
        "soft_sort": lambda keys, _: sw.soft_sort(keys),
        "soft_rank": lambda keys, _: sw.soft_rank(keys),
        "sort_by": lambda keys, given: sw.sort_by(keys, given),
        "order_loss": functools.partial(_our_loss, None),
    },
    cases.NEIGHBOURS: {"order_loss": functools.partial(_our_loss, 1)},
    cases.HARD: {
        "soft_sort": lambda keys, _: keys.sort(dim=-1).values,
        "soft_rank": _hard_ranks,
        "sort_by": _hard_payload,
    },
    cases.VALUES: {"soft_sort": lambda keys, _: bitonic_values(keys)},
    cases.LIST_MLE: {"order_loss": _list_mle},
    cases.TORCHSORT: {
        "soft_sort": functools.partial(_torchsort, "soft_sort"),
        "soft_rank": functools.partial(_torchsort, "soft_rank"),
        "order_loss": _torchsort_loss,
    },
}
