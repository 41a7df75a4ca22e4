"""Fused pieces of small image networks: one pass over memory each, where Triton kernels run.

The first layers of such a network are bound by memory: an image of 100 × 100 pixels with 32
channels is read and written for the bias, for the activation and for the pool. Here convolution,
bias and activation are one step for *thin* inputs (few channels, no gradient wanted) and between
*narrow* ones (16 channels on both sides); so are pool, bias and activation; and so are activation,
batch normalisation and pool. The reference engines are the specification.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import BatchNorm2d
from torch.nn import functional as F

from sparsewire.annotations import Float
from sparsewire.engines import Engine, dispatch

_TAPS = 32  # weights of a window of a thin image over all channels, and the bias
_NARROW = 16  # channels on both sides: for more, cuDNN is near the bound of the memory
_WIDEST = 256  # channels that the kernel of `pool_relu` holds at once
_LARGEST_POOL = 16  # the index of a pixel in its square fits into eight bits


def conv_relu(
    x: Float[Tensor, "b c h w"],
    weight: Float[Tensor, "d c k k"],
    bias: Float[Tensor, " d"],
    padding: int = 1,
) -> Float[Tensor, "b d i j"]:
    """Return relu(conv2d(x, weight, bias)).

    Examples:
        >>> x, weight = torch.ones(1, 1, 3, 3), torch.ones(1, 1, 3, 3)
        >>> conv_relu(x, weight, torch.tensor([-5.0]))[0, 0]
        tensor([[0., 1., 0.],
                [1., 4., 1.],
                [0., 1., 0.]])
    """
    return dispatch(_CONV, x.device, x, weight, bias, padding)


def conv(
    x: Float[Tensor, "b c h w"], weight: Float[Tensor, "d c k k"], padding: int = 1
) -> Float[Tensor, "b d i j"]:
    """Return conv2d(x, weight).

    Examples:
        >>> conv(torch.ones(1, 1, 1, 2), torch.ones(1, 1, 3, 3))
        tensor([[[[2., 2.]]]])
    """
    return dispatch(_CONV, x.device, x, weight, None, padding)


def pool_relu(
    x: Float[Tensor, "b d h w"], bias: Float[Tensor, " d"], size: int
) -> Float[Tensor, "b d i j"]:
    """Return relu(max_pool2d(x, size) + bias).

    Bias and activation do not change which pixel is the largest, so this equals a convolution's
    bias, an activation and a pool in that order, at a fraction of the work.

    Examples:
        >>> pool_relu(torch.tensor([[[[1.0, 2.0], [3.0, -1.0]]]]), torch.tensor([0.5]), 2)
        tensor([[[[3.5000]]]])
    """
    return dispatch(_POOL, x.device, x, bias, size)


def relu_norm_pool(
    x: Float[Tensor, "b d h w"],
    norm: BatchNorm2d,
    size: int,
) -> Float[Tensor, "b d i j"]:
    """Return max_pool2d(norm(relu(x)), size).

    Args:
        x: The image.
        norm: The normalisation: weights, statistics, and whether it is in training.
        size: Side of the squares.

    Examples:
        >>> y = relu_norm_pool(torch.tensor([[[[-1.0, 0.0], [0.0, 4.0]]]]), BatchNorm2d(1), 2)
        >>> y  # of 0, 0, 0 and 4 the largest is √3 deviations from the mean
        tensor([[[[1.7320]]]], grad_fn=<MaxPool2DWithIndicesBackward0>)
    """
    return dispatch(_NORM, x.device, x, norm, size)


def _conv_reference(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int) -> Tensor:
    y = F.conv2d(x, weight, padding=padding)
    return y if bias is None else pool_relu(y, bias, 1)  # a bias and an activation


def _thin_conv(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int) -> Tensor:
    from sparsewire_lab.kernels._triton import operators

    dtype = _half(x) or torch.promote_types(x.dtype, weight.dtype)
    return operators.thin_conv(x, weight, bias, padding, bias is not None, dtype)


def _is_thin(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int) -> bool:
    """Whether x is data of few channels, which need no gradient."""
    del bias
    wide = weight.shape[0]
    return (
        _plain(x)
        and weight[0].numel() < _TAPS
        and weight.shape[2] == weight.shape[3] <= min(x.shape[2:]) + 2 * padding
        and 16 <= wide <= _WIDEST
        and wide & (wide - 1) == 0
        and wide * x.numel() < 2**31
        and not x.requires_grad
        and x.is_contiguous()
    )


def _narrow_conv(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int) -> Tensor:
    from sparsewire_lab.kernels._triton import operators

    del padding
    return operators.narrow_conv(x, weight, bias, bias is not None)


def _is_narrow(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int) -> bool:
    del bias
    return (
        padding == 1
        and _plain(x)
        and weight.shape == (_NARROW, _NARROW, 3, 3)
        and x.is_contiguous(memory_format=torch.channels_last)
        and _half(x) in (None, x.dtype)
    )


def _pool_reference(x: Tensor, bias: Tensor, size: int) -> Tensor:
    largest = F.max_pool2d(x, size) if size > 1 else x
    return F.relu(largest + bias.to(x.dtype)[:, None, None])


def _pool_kernel(x: Tensor, bias: Tensor, size: int) -> Tensor:
    from sparsewire_lab.kernels._triton import operators

    return operators.pool_relu(x, bias, size)[0]


def _is_pooled(x: Tensor, _: object, size: int) -> bool:
    """Whether channels are innermost and squares fit into the image."""
    return (
        _plain(x)
        and x.shape[1] <= _WIDEST
        and size <= min(_LARGEST_POOL, *x.shape[2:])
        and x.is_contiguous(memory_format=torch.channels_last)
    )


def _norm_reference(x: Tensor, norm: BatchNorm2d, size: int) -> Tensor:
    return F.max_pool2d(norm(F.relu(x)), size)


def _norm_kernel(x: Tensor, norm: BatchNorm2d, size: int) -> Tensor:
    from sparsewire_lab.kernels._triton import operators

    y, _, _, mean, variance = operators.norm_pool(x, norm.weight, norm.bias, norm.eps, size)
    if norm.track_running_stats:
        follow_statistics(norm, mean, variance, x.numel() // x.shape[1])
    return y


def _is_normalised(x: Tensor, norm: BatchNorm2d, size: int) -> bool:
    """Whether the statistics are those of the batch in this process."""
    own = type(norm) is BatchNorm2d and norm.training and norm.affine
    return own and _is_pooled(x, norm, size)


@torch.no_grad()
def follow_statistics(norm: BatchNorm2d, mean: Tensor, variance: Tensor, count: int) -> None:
    """Update the running statistics of a normalisation, as torch does.

    Args:
        norm: The normalisation.
        mean: Mean of each channel.
        variance: Variance of each channel, not corrected.
        count: Number of values of a channel.
    """
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked += 1
    # Without a momentum all batches count alike.
    share: Any = 1 / norm.num_batches_tracked if norm.momentum is None else norm.momentum
    norm.running_mean.lerp_(mean, share)
    norm.running_var.lerp_(variance * (count / max(count - 1, 1)), share)


def _plain(x: Tensor) -> bool:
    """Whether kernels take such a tensor, outside of the transforms of torch.func."""
    return (
        torch._C._functorch.peek_interpreter_stack() is None  # pyright: ignore
        and 0 < x.numel() < 2**31
        and x.dtype in (torch.float32, torch.bfloat16, torch.float16)
    )


def _half(x: Tensor) -> torch.dtype | None:
    """The dtype of autocast, where it is on."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


_CONV = (
    Engine("triton", _thin_conv, _is_thin),
    Engine("triton", _narrow_conv, _is_narrow),
    Engine("reference", _conv_reference),
)
_POOL = Engine("triton", _pool_kernel, _is_pooled), Engine("reference", _pool_reference)
_NORM = Engine("triton", _norm_kernel, _is_normalised), Engine("reference", _norm_reference)
