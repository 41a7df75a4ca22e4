"""The free sparse layers: sparse linear maps whose wiring is learned."""

import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Generator, Tensor, nn

from sparsewire.annotations import Float, Int
from sparsewire.checks import check_choice, check_count, check_open_shape, check_range, check_shape
from sparsewire.engines import transformed
from sparsewire.nn.frozen import FrozenLayer
from sparsewire.nn.hyper import HyperLayer, Mode
from sparsewire.nn.layout import Layout, Placed, Shapes, Template
from sparsewire.nn.layout import fan_in as template_of
from sparsewire.nn.schedule import Schedule
from sparsewire.nn.sources import FreeTuples
from sparsewire.nn.wiring import check_value_numbers, contributions
from sparsewire.ops.bound import Edge

Start = Literal["inputs", "even"]
STARTS: tuple[Start, ...] = get_args(Start)

# The share of values at their nearest places below which, and of wires that share their places
# above which, `eval()` warns.
_BLURRED, _CROWDED = 0.5, 0.5

# The initial variance of `SparseLinear`: a wire learns from the places beside its own.
_NARROW = 1.5


class SparseLayer(HyperLayer):
    """A sparse layer with free parameters: k continuous index tuples, their variances and values.

    In training the output is that of the rounded wiring, as in evaluation, while means and
    variances learn from a sampled pass. The wiring settles by its schedule. With `schedule=None`
    this is the paper's non-adaptive sparse (NAS) layer: its start, without a schedule, and with
    wirings that are sampled in training and rounded in evaluation only.

    Args:
        in_shape: Sizes of the input axes, see `HyperLayer`.
        out_shape: Sizes of the output axes.
        tuples: The number k; that of the template's rows if not given.
        values: Initial value of all tuples. If not given, they start as the weights of `nn.Linear`
            with as many inputs as an output has tuples; without a schedule from N(0, 1).
        learn_values: Whether the values are parameters, or stay as they are.
        template: See `HyperLayer`.
        share_values: See `HyperLayer`.
        schedule: How the wiring settles; None for the paper's method.
        start: Where wires start, with a schedule: `"even"` spreads them evenly over all places;
            `"inputs"` does the same where an output column is learned, and otherwise starts more
            wires at inputs that vary more, in proportion to their standard deviation in the first
            batch of training.
        variance: Initial variance of the wires on the longest axis, in places; about a fifth of
            its size if not given. With a schedule only.
        edge: How raw means are folded onto the index axes, without a schedule only: `"sigmoid"`
            if not given.
        seed: Seed of the start; torch's global generator is used if not given.
        **options: All other arguments of `HyperLayer`.

    Examples:
        >>> import sparsewire as sw
        >>> layer = sw.SparseLayer(in_shape=(64,), out_shape=(64,), tuples=64, seed=0)
        >>> layer(torch.randn(32, 64)).shape
        torch.Size([32, 64])
        >>> layer.eval().freeze().coo().shape
        torch.Size([64, 64])
    """

    #: Whether `eval()` warns, once, where wirings were sampled in training whose variances are so
    #: wide that rounded ones differ, or where many wires share places.
    warns = True

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
        schedule: Schedule | None = Schedule(),  # noqa: B008 (it cannot be changed)
        start: Start = "inputs",
        variance: float | None = None,
        edge: Edge | None = None,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        ins, outs = check_open_shape("in_shape", in_shape), check_shape("out_shape", out_shape)
        layout = Layout() if template is None else Template(template)
        if template is not None:
            tuples = len(template) if tuples is None else tuples
        if tuples is None:
            raise TypeError("tuples must be given, or a template with a row for each; got None")
        numbers, count = check_value_numbers(share_values, tuples)
        common: dict[str, Any] = {
            "values": values, "learn_values": learn_values, "value_count": count, "seed": seed
        }  # fmt: skip
        learned = layout.learned if isinstance(layout, Template) else range(len(outs) + len(ins))
        given: dict[str, Any] = {"schedule": schedule, "edge": edge}
        if schedule is not None:
            check_count("tuples", tuples, least=1)
            sizes = (*outs, *ins)
            whole = list(learned) == list(range(len(outs), len(sizes))) and None not in ins
            given |= {
                "by_inputs": check_choice("start", start, STARTS) == "inputs" and whole,
                "sizes": [sizes[i] for i in learned if i < len(sizes)],
                "together": layout.default_context(tuples),
                "variance": variance,
                "scale": 1 / math.sqrt(max(1.0, tuples / math.prod(outs))),
            }
        source = FreeTuples(tuples, len(learned), **common, **given)
        super().__init__(source, ins, outs, template=template, share_values=numbers, **options)
        context = self._context(tuples)
        if None not in ins and context > (places := math.prod(self.space())):
            warnings.warn(
                f"{context} tuples compete for {places} places, so that some share a place and "
                "their values add up there; fewer tuples, or smaller contexts, would do",
                stacklevel=2,
            )

    def forward(
        self,
        x: Float[Tensor, "*x"],
        *,
        mode: Mode | None = None,
        generator: Generator | None = None,
    ) -> Float[Tensor, "*y"]:
        """Transform a batch, see `HyperLayer.forward`."""
        learns = self.training and torch.is_grad_enabled() and not transformed()
        if self.source.waits and learns and x.numel():
            self._shapes_and_batch(x)  # refuses other shapes
            self.source.start_by(self._deviations(x.detach()))
        return super().forward(x, mode=mode, generator=generator)

    def _deviations(self, x: Tensor) -> Tensor:
        """Return how much each input varies over a batch and its features."""
        first = x.dim() - len(self.in_shape) - self.features
        by_input = x.float().flatten(first, first + len(self.in_shape) - 1).movedim(first, 0)
        return by_input.flatten(1).std(1, correction=0).nan_to_num(0.0, 0.0, 0.0)

    def train(self, mode: bool = True) -> "SparseLayer":
        """Change to training or evaluation; warn once if they are far apart, see `warns`."""
        ends = self.training and not mode and self.was_trained
        known = None not in self.in_shape and not self.source.raw_means.is_meta
        problems = "; ".join(self._problems()) if ends and known and self.warns else ""
        if problems:
            self.warns = False
            name = type(self).__name__
            warnings.warn(f"{name} may not evaluate as it was trained: {problems}", stacklevel=2)
        return super().train(mode)

    @torch.no_grad()
    def _problems(self) -> Iterator[str]:
        wiring = self.wiring()
        weights = wiring.values.abs()
        if self.train_mode == "sampled" and self.evaluation == "rounded":
            left = (contributions(wiring).sum() / weights.sum()).item()
            if left < _BLURRED:
                yield (
                    f"its nearest place kept {left:.0%} of a value in training, and has all of it "
                    "in evaluation; train longer with a schedule, with "
                    "train_mode='straight-through', or set evaluation='sampled'"
                )
        wires = int((weights > 0).sum())
        shared = 1 - len(self.freeze().values) / max(wires, 1)
        if shared > _CROWDED:
            yield (
                f"{shared:.0%} of {wires} wires share a place with a stronger one; use "
                "sparsewire.Rewire in training, or fewer wires"
            )


class SparseLinear(SparseLayer):
    """A sparse `nn.Linear` that learns which inputs each output reads.

    y[o] = Σ_i value[o, i] · x[place[o, i]] + bias[o]

    Every output has `fan_in` wires. They start where inputs vary, and move to better places while
    their values are learned; what is evaluated is what was trained. Nothing of the size
    of the dense matrix is stored.

    Args:
        in_features: Size of the last dimension of the input.
        out_features: Size of the last dimension of the output.
        bias: Whether to add a bias.
        density: Share of the matrix that is not zero: wires for each output, in shares of
            `in_features`. Give this or `fan_in`.
        fan_in: Wires of each output.
        in_shape: How the inputs are arranged, such as (28, 28) for the pixels of an image in
            row-major order: wires then move along rows and columns. One axis if not given.
        free: Whether wires may move to other outputs too, so that outputs differ in their number.
        seed: See `SparseLayer`.
        device: Device of the parameters.
        dtype: Their dtype.
        **options: Other arguments of `SparseLayer`, such as `schedule`.

    Neighbouring inputs should have something in common, as pixels and moments have: a wire learns
    from what is around it where to go.

    Examples:
        >>> import sparsewire as sw
        >>> layer = sw.SparseLinear(784, 100, density=0.01, in_shape=(28, 28))
        >>> layer(torch.randn(32, 784)).shape, layer.fan_in
        (torch.Size([32, 100]), 8)
        >>> layer.eval().freeze()(torch.randn(32, 784)).shape
        torch.Size([32, 100])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        density: float | None = None,
        fan_in: int | None = None,
        in_shape: Sequence[int] | None = None,
        free: bool = False,
        seed: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        check_count("in_features", in_features, least=1)
        check_count("out_features", out_features, least=1)
        ins = (in_features,) if in_shape is None else check_shape("in_shape", in_shape)
        if math.prod(ins) != in_features:
            raise ValueError(
                f"in_shape must have {in_features} elements, as in_features says; got {ins}"
            )
        wires = _count_wires(in_features, density, fan_in)
        options = {"context": 1, "variance": _NARROW} | options
        if free:
            given: dict[str, Any] = {"tuples": wires * out_features}
        else:
            given = {"template": template_of((out_features,), ins, wires)}
        super().__init__(ins, (out_features,), bias=bias, seed=seed, **given, **options)
        self.in_features, self.out_features, self.fan_in = in_features, out_features, wires
        self._ins = ins
        if self.bias is not None:
            generator = None if seed is None else torch.Generator().manual_seed(seed)
            limit = 1 / math.sqrt(wires)
            nn.init.uniform_(self.bias, -limit, limit, generator=generator)
        self.to(device=device, dtype=dtype)

    def forward(
        self,
        x: Float[Tensor, "*x"],
        *,
        mode: Mode | None = None,
        generator: Generator | None = None,
    ) -> Float[Tensor, "*y"]:
        """Transform a batch of shape (*b, in_features), see `HyperLayer.forward`."""
        if x.dim() < 1 or x.shape[-1] != self.in_features:
            raise ValueError(
                f"x must have shape (*b, in_features) with in_features {self.in_features}; "
                f"got {tuple(x.shape)}"
            )
        return super().forward(x.unflatten(-1, self._ins), mode=mode, generator=generator)

    def _frozen(self, placed: Placed, shapes: Shapes, trainable: bool) -> FrozenLayer:
        return super()._frozen(placed, Shapes(shapes.outs, (self.in_features,)), trainable)

    def extra_repr(self) -> str:
        """Show the sizes and the wires, as `nn.Linear` does."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"fan_in={self.fan_in}, in_shape={self._ins}, bias={self.bias is not None}"
        )


def _count_wires(features: int, density: float | None, fan_in: int | None) -> int:
    """Return the wires of each output."""
    if (density is None) == (fan_in is None):
        given = "neither" if density is None else "both"
        raise TypeError(f"density or fan_in must be given, one of them; got {given}")
    if density is not None:
        return max(1, round(check_range("density", density, 0.0, 1.0) * features))
    if (count := check_count("fan_in", fan_in, least=1)) > features:  # pyright: ignore
        raise ValueError(f"fan_in must be at most in_features, {features}; got {count}")
    return count
