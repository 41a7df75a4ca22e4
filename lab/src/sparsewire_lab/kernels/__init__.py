"""Pieces of small image networks, each one pass over memory where there are kernels.

The first layers of such a network are bound by memory: a 100 × 100 image with 32 channels is read
and written for the bias, for the activation and for the pool. Here a thin image (few channels) is
convolved with bias and activation in one go, and pool, bias and activation are one step; so are
activation, batch normalisation and pool. The plain functions are the specification; kernels take
their place on a GPU.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import BatchNorm2d
from torch.nn import functional as F

from sparsewire.annotations import Float
from sparsewire.engines import kernels_run

_TAPS = 32  # of a window over all channels of a thin image, and one for the bias
_NARROW = 16  # channels on both sides: for more, libraries are near the floor
_WIDEST = 256  # channels that a kernel of `pool_relu` holds at once
_LARGEST_POOL = 16  # the number of a pixel in its square fits into eight bits


def conv_relu(
    x: Float[Tensor, "b c h w"],
    weight: Float[Tensor, "d c k k"],
    bias: Float[Tensor, " d"],
    padding: int = 1,
) -> Float[Tensor, "b d i j"]:
    """Convolve, and keep what is positive.

    Examples:
        >>> x, weight = torch.ones(1, 1, 3, 3), torch.ones(1, 1, 3, 3)
        >>> conv_relu(x, weight, torch.tensor([-5.0]))[0, 0]
        tensor([[0., 1., 0.],
                [1., 4., 1.],
                [0., 1., 0.]])
    """
    if (found := _by_kernel(x, weight, bias, padding)) is not None:
        return found
    # Pooling over single pixels is a bias and an activation.
    return pool_relu(F.conv2d(x, weight, padding=padding), bias, 1)


def conv(
    x: Float[Tensor, "b c h w"], weight: Float[Tensor, "d c k k"], padding: int = 1
) -> Float[Tensor, "b d i j"]:
    """Convolve.

    Examples:
        >>> conv(torch.ones(1, 1, 1, 2), torch.ones(1, 1, 3, 3))
        tensor([[[[2., 2.]]]])
    """
    if (found := _by_kernel(x, weight, None, padding)) is not None:
        return found
    return F.conv2d(x, weight, padding=padding)


def pool_relu(
    x: Float[Tensor, "b d h w"], bias: Float[Tensor, " d"], size: int
) -> Float[Tensor, "b d i j"]:
    """Take the largest of every size × size square, add the bias, and keep what is positive.

    Bias and activation do not change which is the largest, so that this is what a convolution with
    that bias, an activation and a pool would give, for a fraction of the work.

    Examples:
        >>> pool_relu(torch.tensor([[[[1.0, 2.0], [3.0, -1.0]]]]), torch.tensor([0.5]), 2)
        tensor([[[[3.5000]]]])
    """
    if _plain(x) and _pooled_by_kernel(x, size):
        from sparsewire_lab.kernels._triton import image_library

        return image_library.pool_relu(x, bias, size)[0]
    largest = F.max_pool2d(x, size) if size > 1 else x
    return F.relu(largest + bias.to(x.dtype)[:, None, None])


def relu_norm_pool(
    x: Float[Tensor, "b d h w"],
    norm: BatchNorm2d,
    size: int,
) -> Float[Tensor, "b d i j"]:
    """Keep what is positive, normalise over the batch, and take the largest of every square.

    Args:
        x: The image.
        norm: The normalisation: weights, statistics, and whether it is in training.
        size: Side of the squares.

    Examples:
        >>> y = relu_norm_pool(torch.tensor([[[[-1.0, 0.0], [0.0, 4.0]]]]), BatchNorm2d(1), 2)
        >>> y  # of 0, 0, 0 and 4 the largest is √3 deviations from the mean
        tensor([[[[1.7320]]]], grad_fn=<MaxPool2DWithIndicesBackward0>)
    """
    if not (norm.training and norm.affine and _plain(x) and _pooled_by_kernel(x, size)):
        return F.max_pool2d(norm(F.relu(x)), size)
    from sparsewire_lab.kernels._triton import block_library

    y, _, _, mean, variance = block_library.norm_pool(x, norm.weight, norm.bias, norm.eps, size)
    if norm.track_running_stats:
        _follow(norm, mean, variance, x.numel() // x.shape[1])
    return y


@torch.no_grad()
def _follow(norm: BatchNorm2d, mean: Tensor, variance: Tensor, count: int) -> None:
    """Move the running statistics towards those of a batch, as torch does it."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked += 1
    # Without a momentum all batches count alike.
    share: Any = 1 / norm.num_batches_tracked if norm.momentum is None else norm.momentum
    norm.running_mean.lerp_(mean, share)
    norm.running_var.lerp_(variance * (count / max(count - 1, 1)), share)


def _by_kernel(x: Tensor, weight: Tensor, bias: Tensor | None, padding: int) -> Tensor | None:
    """Convolve by a kernel, with a bias and what is positive, or without both; or return None."""
    if _thin(x, weight, padding):
        from sparsewire_lab.kernels._triton import image_library

        dtype = _half(x) or torch.promote_types(x.dtype, weight.dtype)
        return image_library.thin_conv(x, weight, bias, padding, bias is not None, dtype)
    if padding == 1 and _narrow(x, weight):
        from sparsewire_lab.kernels._triton import block_library

        return block_library.narrow_conv(x, weight, bias, bias is not None)
    return None


def _narrow(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernel of narrow images takes these."""
    return (
        _plain(x)
        and weight.shape == (_NARROW, _NARROW, 3, 3)
        and x.is_contiguous(memory_format=torch.channels_last)
        and _half(x) in (None, x.dtype)
    )


def _thin(x: Tensor, weight: Tensor, padding: int) -> bool:
    """Whether the kernel of thin images takes these: data, which need no gradient."""
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


def _pooled_by_kernel(x: Tensor, size: int) -> bool:
    """Whether the kernel of the pool takes this image: channels innermost, and squares inside."""
    return (
        x.shape[1] <= _WIDEST
        and size <= min(_LARGEST_POOL, *x.shape[2:])
        and x.is_contiguous(memory_format=torch.channels_last)
    )


def _plain(x: Tensor) -> bool:
    """Whether kernels compute on such a tensor, and no transform of torch.func is at work."""
    return (
        torch._C._functorch.peek_interpreter_stack() is None  # pyright: ignore
        and 0 < x.numel() < 2**31
        and x.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and kernels_run(x.device)
    )


def _half(x: Tensor) -> torch.dtype | None:
    """The dtype of autocast, where it is on."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
