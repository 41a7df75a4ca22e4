"""Draws of the kernel: every index is predicted, by a Philox of our own in Python's integers."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from tests.helpers import assert_uniform, seeded
from torch import Tensor

import sparsewire as sw
from sparsewire.ops import sample
from sparsewire.ops._triton_philox import below, random_bits

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
) -> Tensor:
    """What `sample` draws from a generator of its own, by continuous tuple: (q, s, r)."""
    generator = torch.Generator(device).manual_seed(0)
    with sw.engine("triton"):
        drawn = sample(means.to(device), sizes, region, around, anywhere, generator)
    samples = 2 ** len(sizes) + around + anywhere
    return drawn.cpu().unflatten(-2, (means.shape[-2], samples))


def seed_of(device: str) -> int:
    """The number that `draw` takes from its generator as the seed of the kernel."""
    generator = torch.Generator(device).manual_seed(0)
    return int(torch.randint(2**62, (1,), device=device, generator=generator))


def means_around(sizes: Sequence[int], count: int) -> Tensor:
    """Means inside, at and beyond the bounds; some of them integers, some of them halves."""
    means = torch.rand(count, len(sizes), dtype=torch.float64, generator=seeded(0)) * 1.4 - 0.2
    means = means * torch.tensor(sizes)
    kind = torch.randint(3, means.shape, generator=seeded(1))
    return torch.where(kind == 0, means, torch.where(kind == 1, means.round(), means.floor() + 0.5))


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
        ((2**40 + 1, 2**22 - 3), (2**36, 3)),  # with means that only float64 can hold
    ],
    ids=str,
)
def test_every_index_is_predicted(sizes, region, device):
    means = means_around(sizes, 5)
    drawn = draw(means, sizes, region, 3, 4, device)
    assert drawn.tolist() == predicted(means, seed_of(device), sizes, region, 3, 4)


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


@pytest.mark.parametrize("sizes", [(7,), (64,), (3, 5)], ids=str)
def test_draws_are_uniform(sizes, device):
    """χ² over all tuples; and over pairs of successive draws, which must be independent."""
    rank, count = len(sizes), 20_000
    drawn = draw(torch.zeros(1, rank), sizes, sizes, 0, count, device)[0, 2**rank :]
    strides = torch.tensor([math.prod(sizes[axis + 1 :]) for axis in range(rank)])
    cells, number = (drawn * strides).sum(-1), math.prod(sizes)
    pairs = cells.view(-1, 2)
    for found, total in ((cells, number), (pairs[:, 0] * number + pairs[:, 1], number**2)):
        if total < count / 20:
            assert_uniform(found, total)


def test_local_draws_are_uniform_over_the_region(device):
    drawn = draw(torch.tensor([[41.5, 0.0]]), (100, 100), (7, 6), 20_000, 0, device)[0, 4:]
    inside = drawn - torch.tensor([39, 0])  # 41.5 is rounded to 42, and 42 − 3 = 39
    cells = inside[:, 0] * 6 + inside[:, 1]
    assert_uniform(cells, 42)
