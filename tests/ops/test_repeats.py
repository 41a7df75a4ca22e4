import numpy as np
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


@given(prefixes, st.integers(0, 12), st.lists(st.integers(1, 4), min_size=1, max_size=6), seeds)
def test_repeats_equal_a_loop_over_a_set(prefix, count, shape, seed):
    indices = random_indices(prefix, count, shape, seed)
    assert torch.equal(mark_repeats(indices, shape), marked_by_loop(indices))


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=6), st.integers(0, 20), seeds)
def test_flat_index_is_row_major(shape, count, seed):
    indices = random_indices((), count, shape, seed)
    expected = np.ravel_multi_index(tuple(indices.T.numpy()), tuple(shape))
    assert flat_index(indices, shape).tolist() == expected.tolist()


def test_largest_shape_is_exact():
    assert flat_index(torch.tensor([[2**63 - 2]]), (2**63 - 1,)).item() == 2**63 - 2
    last = torch.tensor([[n - 1 for n in LARGEST_SHAPE]])
    assert flat_index(last, LARGEST_SHAPE).item() == 2**63 - 2
    nearby = last - torch.eye(7, dtype=torch.int64)
    tuples = torch.cat([last, nearby, nearby, last])
    assert mark_repeats(tuples, LARGEST_SHAPE).tolist() == [False] * 8 + [True] * 8
