"""Digits with their labels, and the IDX files that hold them: read strictly, or not at all."""

import struct
from typing import Literal, NamedTuple

import torch
from torch import Tensor

SIDE = 28
"""Height and width of a digit."""

Split = Literal["train", "validation", "all-train", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "all-train", "test")


class Digits(NamedTuple):
    """Pictures of digits, and which digits they are."""

    images: Tensor
    """(n, 28, 28) uint8, 0 is background."""
    labels: Tensor
    """(n,) int64."""

    def to(self, device: torch.device | str) -> "Digits":
        """Return the same digits on a device."""
        return Digits(self.images.to(device), self.labels.to(device))


def check_split(split: str) -> None:
    """Refuse a split that there is not."""
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}; got {split!r}")


def read_digits(images: bytes, labels: bytes) -> Digits:
    """Return the digits of two IDX files, one of pictures and one of labels."""
    pictures = _read(images, "images", (SIDE, SIDE))
    numbers = _read(labels, "labels", ()).long()
    if len(pictures) != len(numbers):
        raise ValueError(
            f"labels must be as many as images, {len(pictures):,}; got {len(numbers):,}"
        )
    if len(numbers) and int(numbers.max()) > 9:
        raise ValueError(f"labels must be 0 to 9; got {int(numbers.max())}")
    return Digits(pictures, numbers)


def _read(data: bytes, name: str, shape: tuple[int, ...]) -> Tensor:
    """Return the bytes of an IDX file, of n things of this shape."""
    axes = 1 + len(shape)
    start = 4 + 4 * axes
    # Two zeros, the kind of number (8 is a byte), and how many axes there are.
    magic = bytes((0, 0, 8, axes))
    if data[:4] != magic:
        raise ValueError(f"{name} must begin with the bytes {magic.hex()}; got {data[:4].hex()}")
    if len(data) < start:
        raise ValueError(f"{name} must have a head of {start} bytes; got {len(data)}")
    sizes = struct.unpack(f">{axes}I", data[4:start])
    if sizes[1:] != shape:
        raise ValueError(f"{name} must hold things of shape {shape}; got {sizes[1:]}")
    wanted = start + sizes[0] * SIDE ** len(shape)
    if len(data) != wanted:
        raise ValueError(
            f"{name} must be {wanted:,} bytes long, as its head says; got {len(data):,}"
        )
    # A bytearray, because a tensor may be written to.
    whole = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return whole[start:].reshape(sizes)
