"""What the tests of the operations share."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import sparsewire as sw

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

seeds = st.integers(0, 2**32 - 1)
prefixes = st.lists(st.integers(0, 3), max_size=2).map(tuple)


def sampled_layer(*args: Any, **options: Any) -> sw.SparseLayer:
    """A layer without a schedule: the paper's, whose wirings are sampled in training."""
    layer = sw.SparseLayer(*args, **{"schedule": None, **options})
    layer.warns = False
    return layer


def pairwise(**axes: Sequence[Any]) -> list[dict[str, Any]]:
    """Combine the axes so that every two values of different axes meet at least once.

    Far fewer combinations than the full product, which catch what depends on two of the axes.
    """
    sizes = [range(len(values)) for values in axes.values()]
    cells = [[(axis, i) for i in size] for axis, size in enumerate(sizes)]
    todo = {pair for a, b in itertools.combinations(cells, 2) for pair in itertools.product(a, b)}
    rows = [[cell] for cell in cells[0]] if len(cells) == 1 else []
    while todo:
        row = list(min(todo))
        for axis in set(range(len(sizes))) - {axis for axis, _ in row}:
            met = [[tuple(sorted((cell, other))) for other in row] for cell in cells[axis]]
            gains = [len(todo.intersection(pairs)) for pairs in met]
            row.append(cells[axis][gains.index(max(gains))])
        todo -= set(itertools.combinations(sorted(row), 2))
        rows.append(row)
    names, values = list(axes), list(axes.values())
    return [{names[axis]: values[axis][i] for axis, i in sorted(row)} for row in rows]


def pairs(**axes: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrise a test with pairwise combinations of its arguments."""
    rows = [tuple(row.values()) for row in pairwise(**axes)]
    return pytest.mark.parametrize(tuple(axes), rows, ids=str)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_indices(
    prefix: Sequence[int], count: int, shape: Sequence[int], seed: int = 0
) -> Tensor:
    """Integer tuples inside `shape`, repeats likely, of shape (*prefix, count, rank)."""
    columns = [
        torch.randint(n, (*prefix, count), generator=seeded(seed + n + 1000 * axis))
        for axis, n in enumerate(shape)
    ]
    return torch.stack(columns, dim=-1) if columns else torch.zeros(*prefix, count, 0).long()


def assert_uniform(cells: Tensor, count: int) -> None:
    """χ² test: are the cell numbers 0 … count − 1 equally frequent?"""
    expected = cells.numel() / count
    errors = cells.flatten().bincount(minlength=count) - expected
    distance = errors.square().sum().double() / expected
    freedom = torch.tensor((count - 1) / 2, dtype=torch.float64)
    assert torch.special.gammaincc(freedom, distance / 2) > 1e-3


def by_engine(name: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as this engine computes it."""

    def call(*args: Any, **options: Any) -> Any:
        with sw.engine(name):
            return function(*args, **options)

    return call


def output_and_gradients(
    function: Callable[..., Tensor], inputs: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """By name: the output of a function, and the gradients of a random weighting of it."""
    leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in inputs.items()}
    output = function(**leaves)
    weights = torch.randn(output.shape, dtype=torch.float64, generator=seeded(1))
    gradients = torch.autograd.grad(output, list(leaves.values()), weights.to(output))
    named = {f"gradient of {name}": g for name, g in zip(leaves, gradients, strict=True)}
    return {"output": output.detach(), **named}


def assert_same(got: Mapping[str, Tensor], want: Mapping[str, Tensor], **tolerance: Any) -> None:
    """Compare by name, so that a failure says what broke."""
    assert got.keys() == want.keys()
    for name, tensor in want.items():
        torch.testing.assert_close(
            got[name], tensor, msg=lambda text, name=name: f"{name}: {text}", **tolerance
        )


@contextmanager
def sizes_kept() -> Iterator[list[int]]:
    """Collect the number of elements of every tensor that autograd keeps for the backward pass."""
    sizes: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel())
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        yield sizes


class LargestStorage(TorchDispatchMode):
    """While it is on, records the bytes of the largest storage that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.bytes = max(self.bytes, leaf.untyped_storage().nbytes())
        return result
