"""The free sparse layer: a sparse linear map whose wiring is learned."""

import math
import warnings
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from sparsewire.annotations import Int
from sparsewire.checks import check_open_shape, check_shape
from sparsewire.nn.hyper import HyperLayer
from sparsewire.nn.layout import Template
from sparsewire.nn.sources import FreeTuples
from sparsewire.nn.wiring import check_value_numbers
from sparsewire.ops.bound import Edge


class SparseLayer(HyperLayer):
    """A sparse layer with free parameters: k continuous index tuples, their variances and values.

    The paper's non-adaptive sparse (NAS) layer. In training the wiring is sampled in each pass; in
    evaluation each value is placed at its nearest index.

    Args:
        in_shape: Sizes of the input axes. `None` marks an axis whose size may change between calls.
        out_shape: Sizes of the output axes.
        tuples: Number of continuous tuples, k; the rows of the template if not given.
        values: Initial value of all tuples; sampled from N(0, 1) if not given.
        learn_values: Whether the values are learned, or fixed. With values fixed at 1 the plain
            method finds identity matrices.
        template: Index matrix that fixes some columns, see `HyperLayer`.
        share_values: Number of the value that each tuple takes, for values shared between tuples.
        edge: How raw means are folded onto the index axes.
        seed: Seed of the initialisation; torch's global generator is used if not given.
        **options: Everything else that `HyperLayer` takes: `local_samples`, `global_samples`,
            `region`, `context`, `wirings`, `bias`, `evaluation`, …

    Examples:
        >>> import sparsewire as sw
        >>> layer = sw.SparseLayer(in_shape=(64,), out_shape=(64,), tuples=64, seed=0)
        >>> layer(torch.randn(32, 64)).shape
        torch.Size([32, 64])
        >>> layer.eval().freeze().coo().shape
        torch.Size([64, 64])
    """

    def __init__(
        self,
        in_shape: Sequence[int | None],
        out_shape: Sequence[int],
        tuples: int | None = None,
        *,
        values: float | None = None,
        learn_values: bool = True,
        template: Int[Tensor, "k r"] | None = None,
        share_values: Sequence[int] | Int[Tensor, " k"] | None = None,
        edge: Edge = "sigmoid",
        seed: int | None = None,
        **options: Any,
    ) -> None:
        ins, outs = check_open_shape("in_shape", in_shape), check_shape("out_shape", out_shape)
        rank = len(ins) + len(outs)
        if template is not None:
            rank = len(Template(template).learned)
            tuples = len(template) if tuples is None else tuples
        if tuples is None:
            raise TypeError("tuples must be given, or a template with a row for each; got None")
        numbers = check_value_numbers(share_values, tuples)
        source = FreeTuples(
            tuples,
            rank,
            values=values,
            learn_values=learn_values,
            value_count=None if numbers is None else int(numbers.max()) + 1,
            edge=edge,
            seed=seed,
        )
        super().__init__(
            source,
            ins,
            outs,
            template=template,
            share_values=numbers,
            edge=edge,
            **options,
        )
        context = self._context(tuples)
        if None not in ins and context > (places := math.prod(self.space())):
            warnings.warn(
                f"{context} tuples compete for {places} places, so that some share a place and "
                "their values add up there; fewer tuples, or smaller contexts, would do",
                stacklevel=2,
            )
