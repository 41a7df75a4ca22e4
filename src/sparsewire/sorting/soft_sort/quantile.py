"""Soft quantiles: means of the soft order over a window of one element."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sparsewire.annotations import Float
from sparsewire.checks import check_devices, check_floating, check_range
from sparsewire.sorting._rows import concrete_on_cpu
from sparsewire.sorting.soft_sort._call import Tails
from sparsewire.sorting.soft_sort._inputs import Rows


def soft_quantile(
    x: Float[Tensor, "*b"],
    q: float | Sequence[float] | Tensor,
    dim: int = -1,
    keepdim: bool = False,
    *,
    temperature: float | Tensor | None = None,
    tails: Tails = "light",
    mask: Tensor | None = None,
    weights: Tensor | None = None,
    hard: bool = False,
) -> Float[Tensor, "*q"]:
    """Return quantiles: means of the soft order over a window of one element, from q (n − 1) on.

    At temperature 0 this is `torch.quantile`, which interpolates between neighbours. `q` is one
    probability or several, in a sequence or a tensor, for which the result has a first dimension;
    with `keepdim` it keeps `dim`, with one element. Rows with NaN and rows without a valid element
    give NaN. With weights, n is their sum. See the module for the other arguments.

    Examples:
        >>> soft_quantile(torch.tensor([3.0, 1.0, 2.0, 4.0]), 0.5, temperature=0.0)
        tensor(2.5000)
        >>> soft_quantile(torch.tensor([3.0, 1.0, 2.0]), [0.0, 0.5], temperature=1.0)
        tensor([1.4501, 2.0000])
    """
    rows = Rows(x, dim, False, temperature, tails, mask, weights)
    if not rows.values.shape[-1]:
        raise ValueError("x must have an element in the dimension; got none")
    shares = _probabilities(q, rows)
    count = rows.count()
    start, width = shares * (count - 1).clamp(min=0), count.clamp(max=1)
    levels = torch.stack([start, start + width], -1)

    def soft() -> Tensor:
        found = rows.compute("mix", rows.known().unsqueeze(-1), levels.flatten(-2))[:, ::2, 0]
        return found / torch.where(width > 0, width, 1).to(found.dtype)

    def hard_one() -> Tensor:
        weight = torch.ones_like(rows.keys) if rows.weights is None else rows.weights
        order = rows.order()
        weight = weight.gather(-1, order).double()
        above = weight.cumsum(-1).unsqueeze(-2)
        ends = torch.minimum(above, levels[..., 1:]) - torch.maximum(
            above - weight.unsqueeze(-2), levels[..., :1]
        )
        ends = ends.clamp(min=0) / torch.where(width > 0, width, 1).unsqueeze(-1)
        known = rows.known().gather(-1, order).double()
        return (ends @ known.unsqueeze(-1)).squeeze(-1).to(rows.keys.dtype)

    found = _with_special(rows, rows.choose(soft, hard_one, hard), levels)
    found = found.mT.to(x.dtype)  # (q, b)
    shape = [size for d, size in enumerate(x.shape) if d != rows.dim] if x.dim() else []
    if keepdim and x.dim():
        shape.insert(rows.dim, 1)
    several = q.dim() if isinstance(q, Tensor) else not isinstance(q, int | float)
    return found.reshape([len(found)] * bool(several) + shape)


def soft_median(
    x: Float[Tensor, "*b"],
    dim: int = -1,
    keepdim: bool = False,
    *,
    temperature: float | Tensor | None = None,
    tails: Tails = "light",
    mask: Tensor | None = None,
    weights: Tensor | None = None,
    hard: bool = False,
) -> Float[Tensor, "*q"]:
    """Return the median, of an even number of elements the mean of the two in the middle.

    Examples:
        >>> soft_median(torch.tensor([3.0, 1.0, 2.0, 100.0]), temperature=0.1)
        tensor(2.5000)
    """
    return soft_quantile(
        x,
        0.5,
        dim,
        keepdim,
        temperature=temperature,
        tails=tails,
        mask=mask,
        weights=weights,
        hard=hard,
    )


def _probabilities(q: float | Sequence[float] | Tensor, rows: Rows) -> Tensor:
    """Check probabilities, and return them as a vector in float64."""
    if isinstance(q, Tensor):
        check_floating("q", q)
        check_devices(**{rows.name: rows.given, "q": q})
        if q.dim() > 1:
            raise ValueError(f"q must have at most one dimension; got {tuple(q.shape)}")
        if concrete_on_cpu(q) and not bool(((q >= 0) & (q <= 1)).all()):
            raise ValueError(f"q must be between 0 and 1; got {q.tolist()}")
        return q.detach().double().reshape(-1)
    shares = [q] if isinstance(q, int | float) else list(q)
    shares = [check_range("q", share, 0.0, 1.0) for share in shares]
    return torch.tensor(shares, dtype=torch.float64, device=rows.keys.device)


def _with_special(rows: Rows, found: Tensor, levels: Tensor) -> Tensor:
    """Put infinities and NaN where a window reaches them."""
    count = rows.count()
    found = torch.where(count > 0, found, torch.nan)
    if not rows.special:
        return found
    there = torch.ones_like(rows.keys) if rows.weights is None else rows.weights
    there, values, near = there.double(), rows.values.detach(), 1e-9 * count
    low, high, none = (
        there.where(which, 0).sum(-1, keepdim=True)
        for which in (values == -torch.inf, values == torch.inf, values.isnan())
    )
    found = torch.where(levels[..., 0] < low - near, -torch.inf, found)
    top = (high > 0) & (levels[..., 1] > count - high + near)
    found = torch.where(top, torch.where(found == -torch.inf, torch.nan, torch.inf), found)
    return torch.where(none > 0, torch.nan, found)
