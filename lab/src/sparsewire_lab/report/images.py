"""Arrays → what a page can hold: pictures as data URIs, numbers as base64."""

import base64
import struct
import zlib
from typing import Any

import numpy as np

# The kinds that the page's script knows, by their names there.
_KINDS = {"u1": "<u1", "u2": "<u2", "f4": "<f4"}


def png(image: np.ndarray) -> bytes:
    """Return a picture in greys as a PNG file.

    Args:
        image: (height, width) bytes, 0 is black.
    """
    if image.ndim != 2 or image.dtype != np.uint8 or 0 in image.shape:
        raise ValueError(
            f"image must be (height, width) bytes; got {image.dtype} of shape {image.shape}"
        )
    height, width = image.shape
    # Each row begins with the number of its filter: 0 is none, best for few greys on black.
    rows = np.concatenate([np.zeros((height, 1), np.uint8), image], axis=1).tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*chunk) for chunk in chunks)


def picture(image: np.ndarray) -> str:
    """Return a picture in greys as a data URI; floats are from 0, black, to 1."""
    if image.dtype != np.uint8:
        image = (255 * np.clip(np.nan_to_num(image.astype(np.float64)), 0, 1)).round()
    return "data:image/png;base64," + base64.b64encode(png(image.astype(np.uint8))).decode()


def packed(array: np.ndarray, kind: str) -> dict[str, Any]:
    """Return numbers for the page's script: their kind, shape and bytes in base64.

    Args:
        array: The numbers; integers must fit the kind.
        kind: "u1", "u2" or "f4".
    """
    if kind != "f4" and array.size and not 0 <= array.min() <= array.max() < 256 ** int(kind[1]):
        raise ValueError(f"numbers must fit {kind}; got {array.min()} to {array.max()}")
    data = np.ascontiguousarray(array, _KINDS[kind]).tobytes()
    return {"kind": kind, "shape": list(array.shape), "data": base64.b64encode(data).decode()}


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
