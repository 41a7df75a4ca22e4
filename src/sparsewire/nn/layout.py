"""Layouts: how learned index tuples map to the elements of W, and which elements are allowed.

A layer learns tuples in a *learned space*, the box of its learned columns. A layout defines the
sizes of that box and maps each of its points to an element of W. The plain layout learns every
column; a template fixes some of them; those of `constraints.py` allow only matrices of one kind.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from sparsewire.annotations import Bool, Float, Int
from sparsewire.checks import check_count, check_integer, check_open_shape, check_sizes, constant
from sparsewire.ops import bound_means, flat_index
from sparsewire.ops.bound import Edge, unbound_fractions
from sparsewire.ops.fused_gather import Addresses
from sparsewire.ops.repeats import flat_columns
from sparsewire.ops.sample import check_region

# Continuous and integer index tuples; the samples of each context, and their values.
Means = Float[Tensor, "*b r"]
Indices = Int[Tensor, "*b r"]
Samples = Int[Tensor, "*w c m r"]
Shares = Float[Tensor, "*w c m"]


class Shapes(NamedTuple):
    """Sizes of the output and input axes of W in one call."""

    outs: tuple[int, ...]
    ins: tuple[int, ...]


class Placed(NamedTuple):
    """A sparse matrix in coordinates of the flattened W; values of equal coordinates add up."""

    rows: Int[Tensor, "*w m"]
    cols: Int[Tensor, "*w m"]
    values: Float[Tensor, "*w m"]


class Reading(NamedTuple):
    """Addresses that contexts of one tuple read, and rows they write (None: one each, in order)."""

    addresses: Addresses
    rows: Int[Tensor, " k"] | None


# Least distance of a mean from the ends of its axis, where edges have no gradient.
_MARGIN = 0.02


class Layout:
    """The plain layout: every column of W is learned, and every index is allowed.

    Subclass it to constrain a layer in another way; most layouts override `space` and `place`.
    Shapes are arguments, since the sizes of the input may change between calls.
    """

    def space(self, shapes: Shapes) -> tuple[int, ...]:
        """Return the sizes of the learned columns; refuse shapes that do not fit the layout."""
        return (*shapes.outs, *shapes.ins)

    def default_context(self, tuples: int) -> int:
        """Return the default number of tuples that compete."""
        return tuples

    def check_context(self, tuples: int, context: int) -> None:
        """Refuse a context of tuples that must not compete."""

    def groups(self, tuples: int) -> Int[Tensor, " k"] | None:
        """Return a number from 0 for each tuple; None if every tuple may go to every place.

        Tuples of one number may go to the same elements of W, those of different numbers may not.
        """
        return None

    def learns_inputs_only(self, out_axes: int) -> bool:
        """Whether every learned column is an input column."""
        return not out_axes

    def bound(self, raw: Means, shapes: Shapes, edge: Edge) -> Means:
        """Bound raw tuples to means inside the allowed part of the learned space."""
        return bound_means(raw, self.space(shapes), edge)

    def unbound(self, indices: Indices, shapes: Shapes, edge: Edge) -> Means:
        """Return raw tuples in float64 whose means round to these allowed indices."""
        last = constant([n - 1 for n in self.space(shapes)], torch.float64, indices.device)
        return unbound_fractions(along(indices.double(), 0.0, last), edge)

    def allowed(self, indices: Indices, shapes: Shapes) -> Bool[Tensor, "*b"] | None:
        """Return which integer tuples may get a share; None where all may."""
        return None

    def settle(self, indices: Indices, shapes: Shapes) -> Indices:
        """Move integer tuples that rounding put outside to the allowed place next to them."""
        return indices

    def place(self, indices: Samples, values: Shares, shapes: Shapes) -> Placed:
        """Map learned integer tuples to elements of the flattened W."""
        outs = len(shapes.outs)
        rows = flat_index(indices[..., :outs], shapes.outs)
        cols = flat_index(indices[..., outs:], shapes.ins)
        return Placed(rows.flatten(-2), cols.flatten(-2), values.flatten(-2))


class Template(Layout, nn.Module):
    """A layout in which some columns are fixed for each tuple, and the others learned.

    Args:
        table: One row for each tuple and one column for each axis of W, output first. A column
            that is −1 in every row is learned; every other column holds the fixed indices.

    All tuples of a context have the same fixed columns, so that values stay in their template.
    """

    table: Tensor
    _groups: Tensor | None

    def __init__(self, table: Int[Tensor, "k r"]) -> None:
        super().__init__()
        check_integer("template", table)
        if table.dim() != 2 or 0 in table.shape:
            raise ValueError(
                "template must have shape (k, r), a row for each tuple and a column for each axis "
                f"of W; got {tuple(table.shape)}"
            )
        least, largest = (ends.tolist() for ends in table.aminmax(dim=0))
        self.learned = [i for i, n in enumerate(largest) if least[i] == n == -1]
        if not self.learned:
            raise ValueError("template must leave a column to learn (−1 in every row); got none")
        self._largest = {i: n for i, n in enumerate(largest) if i not in self.learned}
        for i in self._largest:
            if least[i] < 0:
                raise ValueError(
                    "template must hold indices ≥ 0 in a fixed column, or −1 in every row of a "
                    f"learned one; got {least[i]} in column {i}"
                )
        # A copy on the CPU, where addresses are computed once for each shape.
        self._rows = table.clamp(min=0).tolist()
        self._readings: dict[tuple[Shapes, torch.device], Reading] = {}
        runs = torch.unique_consecutive(table, dim=0, return_counts=True)[1]
        self._runs: list[int] = runs.unique().tolist()
        self.register_buffer("table", table)
        fixed = table[:, list(self._largest)]
        groups = torch.unique(fixed, dim=0, return_inverse=True)[1] if self._largest else None
        self.register_buffer("_groups", groups, persistent=False)

    def space(self, shapes: Shapes) -> tuple[int, ...]:
        """Return the sizes of the learned columns."""
        sizes = (*shapes.outs, *shapes.ins)
        if (columns := self.table.shape[1]) != (rank := len(sizes)):
            raise ValueError(
                f"template must have {rank} columns, one for each axis of W; got {columns}"
            )
        for i, n in self._largest.items():
            if n >= sizes[i]:
                raise ValueError(
                    f"template must hold indices below {sizes[i]} in column {i}; got {n}"
                )
        return tuple(sizes[i] for i in self.learned)

    def default_context(self, tuples: int) -> int:
        """Return the largest context in which all tuples have the same fixed columns."""
        return math.gcd(*self._runs)

    def check_context(self, tuples: int, context: int) -> None:
        """Refuse contexts of tuples with different fixed columns."""
        if tuples != (n := len(self.table)):
            raise ValueError(f"template must have a row for each of the {tuples} tuples; got {n}")
        if any(run % context for run in self._runs):
            raise ValueError(
                "context must group tuples with the same fixed columns of the template, which come "
                f"in runs of {self._runs}; got {context}"
            )

    def groups(self, tuples: int) -> Int[Tensor, " k"] | None:
        """Return the number of the fixed columns of each tuple."""
        return self._groups

    def learns_inputs_only(self, out_axes: int) -> bool:
        """Whether every learned column is an input column."""
        return self.learned[0] >= out_axes

    def place(self, indices: Samples, values: Shares, shapes: Shapes) -> Placed:
        """Combine the learned columns with the fixed ones of their context."""
        fixed = self.table[:: len(self.table) // indices.shape[-3]]
        columns = [column.unsqueeze(-1) for column in fixed.unbind(-1)]
        for position, i in enumerate(self.learned):
            columns[i] = indices[..., position]
        start, outs = indices.new_zeros(()), len(shapes.outs)
        rows = flat_columns([start, *columns[:outs]], (1, *shapes.outs))
        cols = flat_columns([start, *columns[outs:]], (1, *shapes.ins))
        return Placed(*(t.expand(values.shape).flatten(-2) for t in (rows, cols, values)))

    def reading(self, shapes: Shapes, device: torch.device) -> Reading | None:
        """Return what contexts of one tuple read and write; None if an output column is learned."""
        if not self.learns_inputs_only(outs := len(shapes.outs)):
            return None
        reading = None if torch.compiler.is_compiling() else self._readings.get((shapes, device))
        if reading is None:
            rows = [flat_columns([0, *place[:outs]], (1, *shapes.outs)) for place in self._rows]
            base = [flat_columns([0, *place[outs:]], (1, *shapes.ins)) for place in self._rows]
            # Outside of inference mode: an inference tensor could not be used by autograd later.
            with torch.inference_mode(False):
                addresses = Addresses(
                    self.space(shapes),
                    tuple(math.prod(shapes.ins[i - outs + 1 :]) for i in self.learned),
                    torch.tensor(base, device=device),
                )
                in_order = rows == list(range(math.prod(shapes.outs)))
                rows = None if in_order else torch.tensor(rows, device=device)
                reading = Reading(addresses, rows)
            if not torch.compiler.is_compiling():
                self._readings[shapes, device] = reading
        return reading

    def extra_repr(self) -> str:
        """Show which columns are learned."""
        return f"tuples={len(self.table)}, learned columns={self.learned}"


def choose_layout(source: object, template: Tensor | None) -> Layout:
    """Return the layout of a template, or of a source; the plain one if neither has one."""
    layout = getattr(source, "layout", None)
    if template is None:
        return layout if isinstance(layout, Layout) else Layout()
    if isinstance(layout, Layout) and type(layout) is not Layout:
        raise ValueError(
            "template must be None for a source with a layout of its own; "
            f"got a template and {type(layout).__name__}"
        )
    return Template(template)


def region_sizes(
    name: str, region: int | Sequence[int] | None, space: Sequence[int]
) -> tuple[int, ...]:
    """Return the sizes of a region, or window, of the learned space: log₂ of each if not given."""
    if region is None:
        return tuple(max(1, round(math.log2(n))) for n in space)
    if isinstance(region, Sequence):
        return check_region(name, region, space)
    if (size := check_count(name, region, least=1)) > (most := max(space)):
        sizes = tuple(space)
        raise ValueError(f"{name} must be at most {most}, the largest of {sizes}; got {size}")
    return tuple(min(size, n) for n in space)


def fan_in(
    out_shape: Sequence[int], in_shape: Sequence[int | None], tuples: int = 1
) -> Int[Tensor, "k r"]:
    """Return a template in which every output has `tuples` connections, from inputs to be learned.

    Examples:
        >>> fan_in((2,), (28, 28), tuples=2)
        tensor([[ 0, -1, -1],
                [ 0, -1, -1],
                [ 1, -1, -1],
                [ 1, -1, -1]])
    """
    outs, ins = check_sizes("out_shape", out_shape), check_open_shape("in_shape", in_shape)
    check_count("tuples", tuples, least=1)
    places = torch.ones(outs, dtype=torch.bool).nonzero()
    learned = torch.full((len(places), len(ins)), -1)
    return torch.cat([places, learned], dim=1).repeat_interleave(tuples, dim=0)


def along(place: Tensor, low: Tensor | float, high: Tensor) -> Tensor:
    """Return the position of a place between two others, as a fraction just inside (0, 1)."""
    length = (high - low).clamp(min=1)
    # At least 2⁻²⁴: float32 has nothing nearer to 1, and 1 itself would wrap to 0.
    margin = (_MARGIN / length).clamp(2**-24, 0.5)
    return ((place - low) / length).clamp(margin, 1 - margin)
