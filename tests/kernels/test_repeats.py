"""Repeats found pair by pair, against the engine that sorts and against a loop over a set."""

import importlib

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.helpers import prefixes, seeds
from tests.kernels.compare import random_tuples
from torch import Tensor

import sparsewire as sw
from sparsewire.ops import mark_repeats

duplicates = importlib.import_module("sparsewire.ops.repeats")


def marked_by_loop(indices: Tensor) -> list[bool]:
    """Walk through each context and remember what was seen."""
    marks = []
    for context in indices.reshape(-1, *indices.shape[-2:]).tolist() if indices.numel() else []:
        seen: set[tuple[int, ...]] = set()
        for row in map(tuple, context):
            marks.append(row in seen)
            seen.add(row)
    return marks


def check(indices: Tensor, sizes: tuple[int, ...], device: str) -> Tensor:
    with sw.engine("triton"):
        marks = mark_repeats(indices.to(device), sizes).cpu()
    with sw.engine("chunked"):
        assert torch.equal(marks, mark_repeats(indices, sizes))
    assert marks.flatten().tolist() == marked_by_loop(indices)
    return marks


# Around the sizes of blocks (32) and of the tiles that they are compared with (256).
@pytest.mark.parametrize("count", [1, 2, 15, 17, 31, 33, 100, 255, 257, 300, 600])
def test_any_number_of_tuples(count, device):
    sizes = (max(count // 4, 1), 1, 3)
    marks = check(random_tuples((2,), count, sizes), sizes, device)
    assert marks.any() or count <= 2, "the test needs repeats"


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    prefix=prefixes,
    count=st.integers(0, 40),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=6).map(tuple),
    seed=seeds,
)
def test_any_shape(prefix, count, sizes, seed, device):
    check(random_tuples(prefix, count, sizes, seed), sizes, device)


@pytest.mark.parametrize("prefix", [(), (3,), (0,)], ids=str)
def test_no_tuples_no_marks(prefix, device):
    check(random_tuples(prefix, 0, (4, 4)), (4, 4), device)


@pytest.mark.parametrize(
    "sizes",
    [(2**31 - 1,), (2**31,), (2**20, 2**20), (2**15, 2**16), (2**15, 2**16 - 1), (2**63 - 1,)],
    ids=str,
)
def test_tuples_whose_numbers_need_64_bits(sizes, device):
    """Numbers that agree in their last 32 bits are of different tuples."""
    last = torch.tensor([n - 1 for n in sizes])
    rows = torch.stack([last, last // 2, last * 0, (last + 1) // 2, last // 4, last, last * 0])
    marks = check(rows.unsqueeze(0), sizes, device)
    assert marks[0, -2:].all()


def test_numbers_that_agree_in_their_last_bits_only(device):
    rows = torch.tensor([[0, 5], [2**12, 5], [2**13, 5], [0, 5]])
    assert check(rows, (2**20, 2**20), device).tolist() == [False, False, False, True]


def test_contexts_do_not_see_each_other(device):
    indices = torch.tensor([[[1], [2]], [[2], [1]], [[2], [2]]])
    assert check(indices, (3,), device).tolist() == [[False] * 2, [False] * 2, [False, True]]


def test_contiguous_or_not(device):
    indices = random_tuples((3,), 41, (3, 3))
    with sw.engine("triton"):
        marks = mark_repeats(indices.to(device).transpose(0, 1).flip(-1), (3, 3))
    expected = marked_by_loop(indices.transpose(0, 1).flip(-1))
    assert marks.flatten().tolist() == expected


def test_many_tuples_are_sorted_instead(monkeypatch, device):
    """Both sides of the number from which contexts are sorted."""
    monkeypatch.setattr(duplicates, "_PAIRWISE", 40)
    for count in (40, 41):
        check(random_tuples((), count, (5, 5)), (5, 5), device)
