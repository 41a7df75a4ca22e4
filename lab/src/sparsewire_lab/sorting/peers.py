"""Peers: other methods of soft sorting, written from their papers.

Each but the last returns a matrix P of shape (*b, n, n) for keys (*b, n): rows are places, columns
elements, and `P @ keys` is about sorted, the smallest first. `projected_ranks` returns ranks.
"""

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from sparsewire.annotations import Float
from sparsewire.checks import cached


def neural_sort(keys: Float[Tensor, "*b n"], temperature: float = 1.0) -> Float[Tensor, "*b n n"]:
    """NeuralSort (Grover et al., 2019): each place has a softmax over all elements.

    Place i of the largest first is ((n + 1 - 2 i) s - Σ_k |s - s_k|) / temperature.
    """
    n = keys.shape[-1]
    apart = (keys.unsqueeze(-1) - keys.unsqueeze(-2)).abs().sum(-1)
    # From the smallest: place 0 is the last of those.
    place = torch.arange(n, 0, -1, dtype=keys.dtype, device=keys.device)
    scores = (n + 1 - 2 * place).unsqueeze(-1) * keys.unsqueeze(-2) - apart.unsqueeze(-2)
    return (scores / temperature).softmax(-1)


def soft_sort_matrix(
    keys: Float[Tensor, "*b n"], temperature: float = 1.0
) -> Float[Tensor, "*b n n"]:
    """SoftSort (Prillo and Eisenschlos, 2020): a softmax over distances from the sorted keys."""
    inorder = keys.sort(dim=-1).values
    return (-(inorder.unsqueeze(-1) - keys.unsqueeze(-2)).abs() / temperature).softmax(-1)


def sinkhorn_sort(
    keys: Float[Tensor, "*b n"],
    temperature: float = 1.0,
    noise: float = 0.0,
    iterations: int = 20,
) -> Float[Tensor, "*b n n"]:
    """Gumbel-Sinkhorn (Mena et al., 2018), of scores that are a place times a key.

    Args:
        keys: To be sorted.
        temperature: Of the scores.
        noise: Factor of the Gumbel noise that is added to the scores.
        iterations: Number of times that rows and columns are normalised.
    """
    n = keys.shape[-1]
    place = torch.linspace(-1, 1, n, dtype=keys.dtype, device=keys.device)
    scores = place.unsqueeze(-1) * keys.unsqueeze(-2)
    if noise:
        uniform = torch.rand_like(scores).clamp(1e-9, 1 - 1e-7)
        scores = scores - noise * (-uniform.log()).log()
    scores = scores / temperature
    for _ in range(iterations):
        scores = scores.log_softmax(-1)
        scores = scores.log_softmax(-2)
    return scores.exp()


def network_sort(
    keys: Float[Tensor, "*b n"],
    steepness: float = 10.0,
    network: Literal["odd_even", "bitonic"] = "odd_even",
) -> Float[Tensor, "*b n n"]:
    """Differentiable sorting networks (Petersen et al., 2021, 2022), with Cauchy's distribution.

    Two neighbours are exchanged by the share ½ - arctan(steepness · difference) / π.

    Args:
        keys: To be sorted; as many as a power of two for a bitonic network.
        steepness: How fast an exchange becomes certain.
        network: Which pairs are compared.
    """
    n = keys.shape[-1]
    matrix = torch.eye(n, dtype=keys.dtype, device=keys.device).expand(*keys.shape[:-1], n, n)
    for low, high in _layers(n, network, keys.device):
        a, b = keys[..., low], keys[..., high]
        stay = 0.5 + torch.atan(steepness * (b - a)) / math.pi
        keys = _exchange(keys.unsqueeze(-1), low, high, stay).squeeze(-1)
        matrix = _exchange(matrix, low, high, stay)
    return matrix


def projected_ranks(keys: Float[Tensor, "*b n"], temperature: float = 1.0) -> Float[Tensor, "*b n"]:
    """Fast soft ranks (Blondel et al., 2020), as in torchsort: ranks from 0, by projection.

    The projection of keys / temperature onto the convex hull of the permutations of 0 … n - 1: the
    sorted keys minus the isotonic regression of their differences from the hard ranks. That is
    max_{j ≤ i} min_{k ≥ i} of the means over j … k, which takes n² memory and, for the sets of an
    experiment, less time on a GPU than pooling in a loop.
    """
    n = keys.shape[-1]
    if not n:
        return keys
    scaled = keys / temperature
    inorder, index = scaled.sort(dim=-1)
    place = torch.arange(n, device=keys.device)
    sums = F.pad((inorder - place).cumsum(-1), (1, 0))
    length = place + 1 - place.unsqueeze(-1)  # of j … k, with rows j and columns k
    means = (sums[..., 1:].unsqueeze(-2) - sums[..., :-1].unsqueeze(-1)) / length.clamp(min=1)
    with torch.no_grad():
        least, last = means.masked_fill(length < 1, math.inf).flip(-1).cummin(-1)
        least, last = least.flip(-1), n - 1 - last.flip(-1)
        first = least.masked_fill(length < 1, -math.inf).argmax(-2, keepdim=True)
        block = (first * n + last.gather(-2, first)).squeeze(-2)
    ranks = inorder - means.flatten(-2).gather(-1, block)
    return ranks.gather(-1, index.argsort(-1))


def _exchange(x: Tensor, low: Tensor, high: Tensor, stay: Tensor) -> Tensor:
    a, b = x[..., low, :], x[..., high, :]
    moved = (1 - stay).unsqueeze(-1) * (b - a)
    # Rows that are not compared stay.
    return x.index_add(-2, low, moved).index_add(-2, high, -moved)


@cached
def _layers(n: int, network: str, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """Return the pairs of each layer, the place of the smaller key first, on the device."""
    pairs: list[list[tuple[int, int]]] = []
    if network == "odd_even":
        pairs = [[(i, i + 1) for i in range(layer % 2, n - 1, 2)] for layer in range(n)]
    else:
        if n & (n - 1):
            raise ValueError(f"keys must be a power of two for a bitonic network; got {n}")
        block = 2
        while block <= n:
            apart = block // 2
            while apart:
                layer = []
                for i in range(n):
                    if not i & apart:
                        up = not i & block
                        layer.append((i, i + apart) if up else (i + apart, i))
                pairs.append(layer)
                apart //= 2
            block *= 2
    layers = []
    for layer in pairs:
        ends = zip(*layer, strict=True) if layer else ((), ())
        low, high = (torch.tensor(end, dtype=torch.int64, device=device) for end in ends)
        layers.append((low, high))
    return layers
