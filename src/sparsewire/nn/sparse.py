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

    The number k is `tuples`, or that of the template's rows. `values`, `learn_values`, `edge` and
    `seed` are those of `FreeTuples`; all other arguments, and `**options`, those of `HyperLayer`.
    With values fixed at 1 the plain method finds identity matrices.

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
        numbers, count = check_value_numbers(share_values, tuples)
        source = FreeTuples(
            tuples,
            rank,
            values=values,
            learn_values=learn_values,
            value_count=count,
            edge=edge,
            seed=seed,
        )
        super().__init__(source, ins, outs, template=template, share_values=numbers, **options)
        context = self._context(tuples)
        if None not in ins and context > (places := math.prod(self.space())):
            warnings.warn(
                f"{context} tuples compete for {places} places, so that some share a place and "
                "their values add up there; fewer tuples, or smaller contexts, would do",
                stacklevel=2,
            )
