"""Random numbers and statistics of a whole batch, where several processes share its instances.

Processes train to the same weights as one if each instance meets the same random numbers, and is
normalised by the same statistics, whichever process it is in. What is sampled for the batch before
it is shared out needs no more than that. What a model samples by itself is sampled under
`whole_batch`, and batch normalisation is replaced by `synchronise_norms`.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from sparsewire_lab.kernels import follow_statistics
from sparsewire_lab.train.trial import Share

_LIKE = (torch.rand_like, torch.randn_like)
_SIZED = (torch.rand, torch.randn, torch.randint)


def whole_batch(batch: int, share: Share) -> AbstractContextManager[Any]:
    """Sample random numbers of instances for the whole batch, and keep this process's share.

    This holds for dropout and for `torch.rand`, `randn` and `randint`, with or without `_like`,
    where the first axis is that of the instances; other random numbers are the same in all
    processes. On a GPU, kernels make random numbers from a seed: there each process has its own.

    Args:
        batch: Number of instances in all processes.
        share: Returns this process's share of a tensor, along its first axis.
    """
    local = len(share(torch.empty(batch, device="meta")))
    return nullcontext() if local == batch else _WholeBatch(batch, local, share)


class _WholeBatch(TorchFunctionMode):
    def __init__(self, batch: int, local: int, share: Share) -> None:
        super().__init__()
        self.batch, self.local, self.share = batch, local, share

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _SIZED and isinstance(args[-1], Sequence) and args[-1]:
            *bounds, (first, *rest) = args
            if first == self.local:
                return self.share(func(*bounds, (self.batch, *rest), **kwargs))
            if (first, rest) == (1, []) and str(kwargs.get("device")).startswith("cuda"):
                return self.share(func(*bounds, (self.batch,), **kwargs))[:1]  # a kernel's seed
        elif func in _LIKE and self._by_instance(args[0]):
            return self.share(func(self._whole(args[0]), *args[1:], **kwargs))
        elif func is F.dropout and self._by_instance(args[0]):
            x, *options = args
            return x * self.share(func(torch.ones_like(self._whole(x)), *options, **kwargs))
        return func(*args, **kwargs)

    def _by_instance(self, x: Tensor) -> bool:
        return x.dim() > 0 and len(x) == self.local

    def _whole(self, x: Tensor) -> Tensor:
        return x.new_empty((self.batch, *x.shape[1:]))


def mean_of_all(x: Tensor) -> Tensor:
    """Return the mean of a tensor over all processes, which passes gradients to all of them."""
    return x if _processes() == 1 else _MeanOfAll.apply(x)


class _MeanOfAll(torch.autograd.Function):
    """The gradient of a mean over processes is the same mean of the gradients."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        mean = x / _processes()
        torch.distributed.all_reduce(mean)
        return mean

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Tensor:
        return _MeanOfAll.forward(*grad_outputs)


class SharedBatchNorm(nn.BatchNorm2d):
    """Batch normalisation by the statistics of all processes, each with as many instances.

    As `torch.nn.SyncBatchNorm`, on CPUs too; for inputs with any number of axes.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalise over all axes but the second."""
        if not self.training:
            running = self.running_mean, self.running_var
            return F.batch_norm(input, *running, self.weight, self.bias, eps=self.eps)
        with torch.autocast(input.device.type, enabled=False):
            x = input.to(torch.promote_types(input.dtype, torch.float32)).movedim(1, -1)
            rows = x.flatten(0, -2)
            mean = mean_of_all(rows.mean(0))
            variance = mean_of_all((rows - mean).square().mean(0))
            y = (x - mean) * (variance + self.eps).rsqrt() * self.weight + self.bias
        if self.track_running_stats:
            follow_statistics(self, mean, variance, len(rows) * _processes())
        return y.movedim(-1, 1).to(input.dtype)


def synchronise_norms(model: nn.Module) -> None:
    """Replace each batch normalisation by one with the same tensors and `SharedBatchNorm`."""
    for module in list(model.modules()):
        for name, norm in module.named_children():
            if isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d):
                shared = SharedBatchNorm.__new__(SharedBatchNorm)
                shared.__dict__ = norm.__dict__
                setattr(module, name, shared)


def _processes() -> int:
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_initialized() else 1
