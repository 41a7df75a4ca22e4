"""Half-permutations by their definition, vector by vector, in plain Python."""

import itertools
import math

import torch
from torch import Tensor


def chance(t: float, distribution: str) -> float:
    """The distribution function, by its formula; of what is no number, one half."""
    if math.isnan(t):
        return 0.5
    if distribution == "logistic":
        return 1 / (1 + math.exp(-t)) if t > -700 else 0.0
    if distribution == "cauchy":
        return math.atan(t) / math.pi + 0.5
    return (1 + (t / math.sqrt(1 + t * t) if math.isfinite(t) else math.copysign(1, t))) / 2


def half_by_loop(keys: list[float], temperature: float, distribution: str) -> Tensor:
    """The mean of all half-permutations, by the products of their probabilities."""
    m = len(keys)
    pivot = sum(sorted(keys)[m // 2 - 1 : m // 2 + 1]) / 2
    chances = [chance((key - pivot) / temperature, distribution) for key in keys]
    matrix = torch.zeros(m, m, dtype=torch.float64)
    for ones in itertools.combinations(range(m), m // 2):
        weight = math.prod(p if i in ones else 1 - p for i, p in enumerate(chances))
        order = [i for i in range(m) if i not in ones] + list(ones)
        matrix[range(m), order] += weight
    return matrix / matrix.sum(0, keepdim=True)
