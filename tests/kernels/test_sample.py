"""Draws of the kernel: every index is predicted, by a Philox of our own in Python's integers."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.helpers import seeded, seeds
from torch import Tensor

import sparsewire as sw
from sparsewire.ops import nearest, sample
from sparsewire.ops._triton_philox import below, random_bits
from sparsewire.ops.sample import _triton as sampling

WORD = 2**32 - 1


def philox(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers" (SC 2011)."""
    a, b, c, d = counter
    left, right = key
    for _ in range(10):
        first, second = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = (
            (second >> 32) ^ b ^ left,
            second & WORD,
            (first >> 32) ^ d ^ right,
            first & WORD,
        )
        left, right = (left + 0x9E3779B9) & WORD, (right + 0xBB67AE85) & WORD
    return [a, b, c, d]


def bits_of(seed: int, draw: int, axis: int) -> int:
    """The 64 random bits of an axis of a draw."""
    words = philox((draw & WORD, draw >> 32, axis // 2, 0), (seed & WORD, seed >> 32))
    high, low = words[2:] if axis % 2 else words[:2]
    return high << 32 | low


def predicted(
    means: Tensor,
    seed: int,
    sizes: Sequence[int],
    region: Sequence[int],
    around: int,
    anywhere: int,
) -> list[list[list[int]]]:
    """Every tuple that is drawn for means (q, r), by the definition."""
    rank, found = len(sizes), []
    samples = 2**rank + around + anywhere
    for number, mean in enumerate(means.tolist()):
        rows = []
        for place in range(samples):
            row = []
            for axis, (size, span) in enumerate(zip(sizes, region, strict=True)):
                bits = bits_of(seed, number * samples + place, axis)
                if place < 2**rank:
                    low = min(max(math.floor(mean[axis]), 0), max(size - 2, 0))
                    index = low + min((place >> (rank - 1 - axis)) & 1, size - 1)
                elif place < 2**rank + around:
                    start = min(max(round(mean[axis]) - span // 2, 0), size - span)
                    index = start + (bits * span >> 64)
                else:
                    index = bits * size >> 64
                row.append(index)
            rows.append(row)
        found.append(rows)
    return found


def draw(
    means: Tensor,
    sizes: Sequence[int],
    region: Sequence[int],
    around: int,
    anywhere: int,
    device: str,
    seed: int = 0,
) -> Tensor:
    """What `sample` draws, by continuous tuple: (q, s, r)."""
    generator = torch.Generator(device).manual_seed(seed)
    with sw.engine("triton"):
        drawn = sample(means.to(device), sizes, region, around, anywhere, generator)
    samples = 2 ** len(sizes) + around + anywhere
    return drawn.cpu().unflatten(-2, (means.shape[-2], samples))


def seed_of(generator_seed: int, device: str) -> int:
    """The number that `sample` takes from the generator as the seed of the kernel."""
    generator = torch.Generator(device).manual_seed(generator_seed)
    return int(torch.randint(2**62, (1,), device=device, generator=generator))


def means_around(sizes: Sequence[int], count: int, seed: int = 0) -> Tensor:
    """Means inside, at and beyond the bounds; some of them integers, some of them halves."""
    last = torch.tensor(sizes) - 1.0
    fractions = torch.rand(count, len(sizes), generator=seeded(seed)) * 1.4 - 0.2
    means = fractions * (last + 1)
    kind = torch.randint(3, means.shape, generator=seeded(seed + 1))
    return torch.where(kind == 0, means, torch.where(kind == 1, means.round(), means.floor() + 0.5))


def assert_uniform(cells: Tensor, count: int) -> None:
    """χ² test: are the cell numbers 0 … count − 1 equally frequent?"""
    expected = cells.numel() / count
    distance = (cells.bincount(minlength=count) - expected).square().sum().double() / expected
    freedom = torch.tensor((count - 1) / 2, dtype=torch.float64)
    assert torch.special.gammaincc(freedom, distance / 2) > 1e-3


# The random numbers themselves.


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000",
         "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
         "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
         "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)  # fmt: skip
def test_our_philox_gives_the_published_answers(counter, key, expected):
    """From `kat_vectors` of the authors' library, Random123."""
    words = [[int(word, 16) for word in text.split()] for text in (counter, key, expected)]
    assert philox(words[0], words[1]) == words[2]


@triton.jit
def _bits_and_numbers(seed, draws, bound, out, BLOCK: tl.constexpr, PAIR: tl.constexpr):
    place = tl.arange(0, BLOCK)
    number = tl.load(draws + place)
    bits = random_bits(tl.load(seed), number, PAIR)
    tl.store(out + place, bits[0].to(tl.int64, bitcast=True))
    tl.store(out + BLOCK + place, bits[1].to(tl.int64, bitcast=True))
    tl.store(out + 2 * BLOCK + place, below(bits[0], bound))
    tl.store(out + 3 * BLOCK + place, below(bits[1], bound))


@pytest.mark.parametrize(("bound", "pair"), [(1, 0), (3, 1), (2**31 + 7, 2), (2**62 - 1, 0)])
def test_bits_of_draws_beyond_32_bits(pair, bound, device):
    draws = [0, 1, 2, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40 + 12345]
    seed = 2**61 + 2**33 + 2**31 + 77
    out = torch.empty(4, 8, dtype=torch.int64, device=device)
    kernel: Any = _bits_and_numbers
    kernel[(1,)](
        torch.tensor([seed], device=device), torch.tensor(draws, device=device), bound, out,
        BLOCK=8, PAIR=pair,
    )  # fmt: skip
    bits = [[bits_of(seed, t, axis) for t in draws] for axis in (2 * pair, 2 * pair + 1)]
    assert [[n % 2**64 for n in row] for row in out[:2].tolist()] == bits
    assert out[2:].tolist() == [[b * bound >> 64 for b in row] for row in bits]


# Every draw.


@pytest.mark.parametrize(
    ("sizes", "region"),
    [
        ((9,), (4,)),
        ((7, 1), (3, 1)),
        ((5, 300, 2), (5, 8, 1)),
        ((1, 4, 2, 9), (1, 2, 2, 3)),
        ((3, 4, 5, 6, 7), (1, 2, 3, 4, 5)),
        ((2, 3, 2, 5, 1, 4), (2, 1, 2, 3, 1, 4)),
    ],
    ids=str,
)
def test_every_index_is_predicted(sizes, region, device):
    means = means_around(sizes, 5)
    drawn = draw(means, sizes, region, 3, 4, device, seed=11)
    assert drawn.tolist() == predicted(means, seed_of(11, device), sizes, region, 3, 4)


def test_long_axes_are_predicted(device):
    """Sizes beyond 32 bits, with means that only float64 can hold."""
    sizes, region = (2**40 + 1, 2**22 - 3), (2**36, 3)
    means = torch.tensor([[2**39 + 0.5, 7.0], [2.0**41, 2**22 - 3.5]], dtype=torch.float64)
    drawn = draw(means, sizes, region, 6, 6, device)
    assert drawn.tolist() == predicted(means, seed_of(0, device), sizes, region, 6, 6)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cut=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=4),
    q=st.integers(0, 3),
    counts=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    seed=seeds,
)
def test_any_shape_is_predicted(cut, q, counts, seed, device):
    sizes, region = tuple(max(pair) for pair in cut), tuple(min(pair) for pair in cut)
    means = means_around(sizes, q, seed)
    drawn = draw(means, sizes, region, counts[0], counts[1], device, seed)
    assert drawn.shape == (q, 2 ** len(sizes) + sum(counts), len(sizes))
    assert drawn.tolist() == predicted(means, seed_of(seed, device), sizes, region, *counts)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rank", range(1, 7))
def test_the_nearest_are_those_of_plain_pytorch(rank, dtype, device):
    sizes = (9, 1, 2, 30, 3, 5)[:rank]
    means = means_around(sizes, 7).to(dtype)
    drawn = draw(means, sizes, (1,) * rank, 0, 0, device)
    assert torch.equal(drawn, nearest(means, sizes))


def test_batches_are_drawn_as_one_long_list(device):
    means, sizes, region = means_around((9, 8), 12), (9, 8), (3, 2)
    flat = draw(means, sizes, region, 2, 2, device)
    assert torch.equal(
        draw(means.view(2, 3, 2, 2), sizes, region, 2, 2, device).flatten(0, 2), flat
    )


# Rounding, bounds, bad numbers.


def test_halves_are_rounded_as_torch_rounds(device):
    means = torch.arange(-3, 12, 0.5).unsqueeze(-1)
    means = torch.cat([means, torch.nextafter(means, means - 1), torch.nextafter(means, means + 1)])
    drawn = draw(means, (9,), (1,), 1, 0, device)[:, 2]
    assert torch.equal(drawn, means.round().clamp(0, 8).long())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 1e30, -1e30, -0.0])
def test_bad_means_still_give_valid_indices(number, dtype, device):
    sizes, region = (9, 1, 300), (4, 1, 300)
    drawn = draw(torch.full((2, 3), number, dtype=dtype), sizes, region, 5, 5, device)
    assert (drawn >= 0).all()
    assert (drawn < torch.tensor(sizes)).all()


def test_no_means_no_draws(device):
    assert draw(torch.zeros(0, 2), (9, 9), (3, 3), 2, 2, device).shape == (0, 8, 2)


# Randomness.


def test_the_generator_decides_the_draw(device):
    means, generator = means_around((100, 100), 4).to(device), torch.Generator(device)
    state = generator.manual_seed(7).get_state()

    def again() -> Tensor:
        with sw.engine("triton"):
            return sample(means, (100, 100), (70, 70), 4, 4, generator)

    first, second = again(), again()
    generator.set_state(state)
    assert torch.equal(again(), first)
    assert not torch.equal(second, first)


def test_without_a_generator_the_global_seed_decides(device):
    def again() -> Tensor:
        with sw.engine("triton"):
            return sample(torch.zeros(1, 1, device=device), (1000,), (1,), 0, 20)

    torch.manual_seed(3)
    first, second = again(), again()
    torch.manual_seed(3)
    assert torch.equal(again(), first)
    assert not torch.equal(second, first)


@pytest.mark.parametrize("sizes", [(7,), (64,), (3, 5)], ids=str)
def test_draws_are_uniform(sizes, device):
    """χ² over all tuples; and over pairs of successive draws, which must be independent."""
    rank = len(sizes)
    count = 20_000
    seed = torch.tensor([12345], device=device)
    means = torch.zeros(1, rank, device=device)
    drawn = sampling.sample_tuples(means, seed, sizes, sizes, 0, count)[0, 2**rank :].cpu()
    strides = torch.tensor([math.prod(sizes[axis + 1 :]) for axis in range(rank)])
    cells, number = (drawn * strides).sum(-1), math.prod(sizes)
    pairs = cells.view(-1, 2)
    for found, total in ((cells, number), (pairs[:, 0] * number + pairs[:, 1], number**2)):
        if total < count / 20:
            assert_uniform(found, total)


def test_local_draws_are_uniform_over_the_region(device):
    seed, means = torch.tensor([5], device=device), torch.tensor([[41.5, 0.0]], device=device)
    drawn = sampling.sample_tuples(means, seed, (100, 100), (7, 6), 20_000, 0)[0, 4:].cpu()
    inside = drawn - torch.tensor([39, 0])  # 41.5 is rounded to 42, and 42 − 3 = 39
    cells = inside[:, 0] * 6 + inside[:, 1]
    assert_uniform(cells, 42)
