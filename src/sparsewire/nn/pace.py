"""Where free tuples are while they learn: they move at the pace of a schedule, and settle."""

from typing import Any

import torch
from torch import Tensor, nn

from sparsewire.annotations import Bool, Float
from sparsewire.checks import constant
from sparsewire.engines import transformed
from sparsewire.nn.schedule import Schedule, even_start
from sparsewire.ops.bound import raw_variance

# By how much raw variances move while means move by a place.
_WIDTH_SHARE = 0.2


class Pace(nn.Module):
    """Places and widths of free tuples, which move a number of places in each step.

    The parameters of a source, raw means and raw variances, only collect what the optimiser does.
    What it changes in a step moves the tuples, in units in which the root mean square of all
    changes so far stands for the speed of the schedule times its factor. So tuples move alike at
    every learning rate and on axes of every length, follow a rate that falls, and come to rest;
    the same factor lets the variances fall. A step is counted when the parameters changed since
    the last forward pass in training.

    Args:
        schedule: How the tuples settle.
        speed: Places by which a mean moves in one of the first steps.
        means: The raw means, of which only the shape and the device matter.
    """

    steps: Tensor
    places: Tensor
    widths: Tensor
    means_seen: Tensor
    variances_seen: Tensor

    def __init__(self, schedule: Schedule, speed: float, means: Float[Tensor, "k r"]) -> None:
        super().__init__()
        self.schedule, self.speed, self.sizes = schedule, speed, (1,) * means.shape[1]
        wide = {"places": means, "means_seen": means}
        wide |= {"widths": means[:, 0], "variances_seen": means[:, 0]}
        for name in ("steps", "means_sum", "variances_sum"):
            self.register_buffer(name, torch.zeros((), device=means.device))
        for name, like in wide.items():
            self.register_buffer(name, torch.zeros_like(like, requires_grad=False))

    @torch.no_grad()
    def start(
        self,
        sizes: tuple[int, ...],
        together: int,
        variance: float | None,
        generator: torch.Generator | None,
    ) -> None:
        """Put all tuples at places that are spread evenly, see `even_start`, at step 0.

        The parameters are zero then. Sizes are those of the learned columns, and `variance` is in
        places, on the longest axis.
        """
        self.sizes = sizes
        for buffer in self.buffers():
            buffer.zero_()
        self.places.copy_(even_start(sizes, len(self.places), together, generator))
        if variance is not None:
            self.widths.fill_(raw_variance(variance, max(sizes)))

    def forward(
        self, raw_means: Float[Tensor, "k r"], raw_variances: Float[Tensor, " k"]
    ) -> tuple[Float[Tensor, "k r"], Float[Tensor, " k"]]:
        """Return means as fractions of their axes, and raw variances."""
        parameters = {"means": raw_means, "variances": raw_variances}
        changes = {name: p - getattr(self, f"{name}_seen") for name, p in parameters.items()}
        with torch.no_grad():
            changed = [(change != 0).any() for change in changes.values()]
            steps = self.steps + torch.stack(changed).any()
            speed = self.speed * self.schedule.factor(steps)
            sums = {n: getattr(self, f"{n}_sum") + c.square().mean() for n, c in changes.items()}
        spans = constant([max(n - 1, 1) for n in self.sizes], torch.float32, steps.device)
        by_means, by_widths = (
            _paced(change, speed * share, sums[name] / steps.clamp(min=1))
            for (name, change), share in zip(changes.items(), (1.0, _WIDTH_SHARE), strict=True)
        )
        means, widths = (self.places + by_means / spans).clamp(0, 1), self.widths + by_widths
        # Under a transform of torch.func, a module may not change.
        if self.training and torch.is_grad_enabled() and not transformed():
            with torch.no_grad():
                new = {"steps": steps, "places": means, "widths": widths}
                new |= {f"{name}_seen": parameter for name, parameter in parameters.items()}
                new |= {f"{name}_sum": total for name, total in sums.items()}
                for name, tensor in new.items():
                    getattr(self, name).copy_(tensor)
        return means, widths

    @torch.no_grad()
    def move(
        self,
        moved: Bool[Tensor, " k"],
        means: Float[Tensor, "k r"],
        width: float,
        raw_means: Float[Tensor, "k r"],
        raw_variances: Float[Tensor, " k"],
    ) -> None:
        """Put the tuples that are marked at these fractions of the axes, with a raw variance."""
        rows = moved.unsqueeze(-1)
        self.places.copy_(torch.where(rows, means.to(self.places.dtype), self.places))
        self.widths.masked_fill_(moved, width)
        self.means_seen.copy_(torch.where(rows, raw_means, self.means_seen))
        self.variances_seen.copy_(torch.where(moved, raw_variances, self.variances_seen))

    @property
    def variance_factor(self) -> Float[Tensor, ""]:
        """What multiplies the variances above their floor."""
        return self.schedule.factor(self.steps)

    def _apply(self, fn: Any, recurse: bool = True) -> "Pace":
        """Convert, but leave the state in float32 where half precision could not hold places."""
        before = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, tensor in self._buffers.items():
            if tensor is not None and tensor.element_size() < 4:
                self._buffers[name] = before[name].to(tensor.device)  # pyright: ignore
        return self

    def extra_repr(self) -> str:
        """Show the schedule."""
        return f"speed={self.speed}, {self.schedule}"


def _paced(change: Tensor, speed: Tensor, mean_square: Tensor) -> Tensor:
    """Return the change in units in which the typical one is `speed`.

    Its gradient is that of the change itself, so that it does not depend on earlier steps.
    """
    with torch.no_grad():
        unit = torch.where(mean_square > 0, speed * mean_square.rsqrt(), 1.0)
    return change + (unit * change - change).detach()
