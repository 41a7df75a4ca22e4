import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import prefixes, random_indices, seeds
from torch import Tensor

from sparsewire.ops import flat_index, mark_repeats

# The prime factors of 2**63 - 1: the largest shape there is.
LARGEST_SHAPE = (7, 7, 73, 127, 337, 92737, 649657)


def marked_by_loop(indices: Tensor) -> Tensor:
    """Walk through each context and remember what was seen."""
    contexts = indices.reshape(-1, *indices.shape[-2:]) if indices.numel() else []
    marks = []
    for context in contexts:
        seen: set[tuple[int, ...]] = set()
        for row in map(tuple, context.tolist()):
            marks.append(row in seen)
            seen.add(row)
    return torch.tensor(marks, dtype=torch.bool).view(indices.shape[:-1])


@pytest.mark.parametrize(
    ("indices", "expected"),
    [
        ([[5]], [0]),
        ([[5], [5], [5]], [0, 1, 1]),
        ([[2, 1], [1, 2], [2, 1]], [0, 0, 1]),
        ([[0, 3], [3, 0], [1, 1], [3, 0], [0, 3]], [0, 0, 0, 1, 1]),
        ([[1, 0, 2], [1, 2, 0], [0, 1, 2], [2, 1, 0]], [0, 0, 0, 0]),
        ([[[1], [2]], [[2], [1]], [[2], [2]]], [[0, 0], [0, 0], [0, 1]]),
    ],
)
def test_repeats_by_hand(indices, expected):
    tuples = torch.tensor(indices)
    marks = mark_repeats(tuples, (6,) * tuples.shape[-1])
    assert marks.tolist() == torch.tensor(expected).bool().tolist()


@given(prefixes, st.integers(0, 12), st.lists(st.integers(1, 4), min_size=1, max_size=6), seeds)
def test_repeats_equal_a_loop_over_a_set(prefix, count, shape, seed):
    indices = random_indices(prefix, count, shape, seed)
    assert torch.equal(mark_repeats(indices, shape), marked_by_loop(indices))


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=6), st.integers(0, 20), seeds)
def test_flat_index_is_row_major(shape, count, seed):
    indices = random_indices((), count, shape, seed)
    expected = np.ravel_multi_index(tuple(indices.T.numpy()), tuple(shape))
    assert flat_index(indices, shape).tolist() == expected.tolist()


def test_flat_index_numbers_every_tuple_once():
    shape = (3, 1, 4, 2)
    indices = torch.tensor(list(itertools.product(*map(range, shape))))
    assert flat_index(indices, shape).tolist() == list(range(24))


def test_largest_shape_is_exact():
    assert flat_index(torch.tensor([[2**63 - 2]]), (2**63 - 1,)).item() == 2**63 - 2
    last = torch.tensor([[n - 1 for n in LARGEST_SHAPE]])
    assert flat_index(last, LARGEST_SHAPE).item() == 2**63 - 2
    nearby = last - torch.eye(7, dtype=torch.int64)
    tuples = torch.cat([last, nearby, nearby, last])
    assert mark_repeats(tuples, LARGEST_SHAPE).tolist() == [False] * 8 + [True] * 8


@pytest.mark.parametrize("shape", [(2**63,), (2**32, 2**31), (*LARGEST_SHAPE, 2)])
def test_shapes_past_the_largest_are_refused(shape):
    with pytest.raises(ValueError, match=r"shape must have at most 2\*\*63 - 1 elements"):
        mark_repeats(torch.zeros(1, len(shape), dtype=torch.int64), shape)


@pytest.mark.parametrize(
    ("pair", "shape"),
    [
        ([[2**24, 0], [2**24 + 1, 0]], (2**30, 2**30)),
        ([[2**53, 0], [2**53 + 1, 0]], (2**54, 2**8)),
        ([[0, 2**40], [1, 0]], (2**20, 2**40 + 1)),
    ],
)
def test_tuples_that_floats_would_confuse_are_distinct(pair, shape):
    assert not mark_repeats(torch.tensor(pair), shape).any()


@pytest.mark.parametrize(("rank", "size"), [(3, 100), (6, 100), (6, 1000)])
def test_no_false_repeats_among_many_tuples(rank, size):
    shape = (size,) * rank
    indices = torch.randint(size, (5000, rank))
    indices = torch.cat([indices, indices[:500]])
    marks = mark_repeats(indices, shape)
    assert torch.equal(marks, marked_by_loop(indices))
    assert marks.sum() >= 500
