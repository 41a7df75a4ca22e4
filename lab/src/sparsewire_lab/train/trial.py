"""A trial: what one run trains, on what, and how it is judged."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

T = TypeVar("T")
Share = Callable[[Tensor], Tensor]


@runtime_checkable
class Stateful(Protocol):
    """Anything else that belongs into a checkpoint."""

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain values."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> Any:
        """Take what `state_dict` returned."""
        ...


class Trial:
    """One run of an experiment. Subclasses make the parts, and say what loss and error are.

    Everything random in `loss` comes from torch's default generators, which are the same in all
    processes; `evaluate`, `conclude`, `snapshot` and `pictures` must leave them as they are.

    Args:
        model: What is trained, on its device.
        optimizer: Its optimiser.
        schedule: Stepped after each step, if given.
        extras: What else is saved and restored, by name.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        schedule: LRScheduler | None = None,
        extras: dict[str, Stateful] | None = None,
    ) -> None:
        self.model, self.optimizer, self.schedule = model, optimizer, schedule
        self.extras = extras or {}

    def loss(self, model: Callable[..., Any], batch: int, share: Share) -> Tensor:
        """Sample a batch and return the mean loss of this process's share of it.

        Args:
            model: The model, as it must be called to train: in several processes, wrapped.
            batch: Number of instances to sample, the same ones in all processes.
            share: Returns this process's share of a tensor, along its first axis.
        """
        raise NotImplementedError

    def evaluate(self) -> dict[str, float]:
        """Return metrics by name. Every process computes all of them.

        A long evaluation goes through its parts with `batches`, the same ones in every process.
        """
        raise NotImplementedError

    def check_stop(self) -> None:
        """End the run if a signal asks for it; the loop replaces this while it evaluates."""

    def batches(self, parts: Iterable[T]) -> Iterator[T]:
        """Yield the parts of an evaluation; before each, a signal can end the run."""
        for part in parts:
            self.check_stop()
            yield part

    def conclude(self) -> dict[str, float]:
        """Return more metrics, of a finished run: what is too slow for every evaluation."""
        return {}

    def after_step(self) -> None:
        """Do what follows a step, outside of a captured graph."""

    def snapshot(self, step: int) -> dict[str, Tensor]:
        """Return small tensors to look at later, one of each kind for every evaluation."""
        return {}

    def pictures(self, step: int, frame: dict[str, Tensor]) -> dict[str, Any]:
        """Return small pictures by name, to follow a run in TensorBoard; asked for only then.

        Args:
            step: The step after which they are drawn.
            frame: What `snapshot` returned after the same step.

        Returns:
            Arrays of shape (height, width, 3) in uint8.
        """
        return {}

    def constants(self) -> dict[str, Tensor]:
        """Return what is saved with the snapshots once."""
        return {}


def generator(seed: int, device: torch.device) -> torch.Generator:
    """Return a generator apart from the default ones, for evaluations."""
    return torch.Generator(device=device).manual_seed(seed)
