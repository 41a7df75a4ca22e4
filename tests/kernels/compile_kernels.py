"""Compile kernels for a GPU where there is none; print the shared memory that each needs, as JSON.

The interpreter finds what is computed wrongly, and not what a compiler refuses or what fits into no
GPU. Run in a process of its own, without the interpreter.
"""

import itertools
import json
from typing import Any

import triton  # pyright: ignore[reportMissingImports]
from triton.backends.compiler import GPUTarget  # pyright: ignore[reportMissingImports]
from triton.compiler import ASTSource  # pyright: ignore[reportMissingImports]

from sparsewire.sorting.order_loss._triton import kernels as likelihood
from sparsewire.sorting.soft_sort._triton import rows
from sparsewire.sorting.soft_sort._triton import wide as tiles
from sparsewire_lab.kernels._triton import images, narrow_conv, norm_pool, totals

TARGET = GPUTarget("cuda", 90, 32)
NUMBER, FLOAT, DOUBLE, HALF, BYTE = "i32", "*fp32", "*fp64", "*bf16", "*u8"


def shared_memory(kernel: Any, kinds: dict[str, str], stages: int = 3, **constants: Any) -> int:
    """Compile a kernel; arguments that are neither named nor constant are numbers."""
    names = kernel.arg_names
    kinds = {n: kinds.get(n, NUMBER) for n in names if n not in constants}
    signature = {n: kinds.get(n, "constexpr") for n in names}
    values = {(names.index(n),): value for n, value in constants.items()}
    aligned: Any = [["tt.divisibility", 16]]
    attributes = {(names.index(n),): aligned for n, kind in kinds.items() if kind.startswith("*")}
    source = ASTSource(kernel, signature, values, attributes)
    compiled = triton.compile(source, TARGET, {"num_stages": stages})
    return int(compiled.metadata.shared)


def all_of(kind: str, *names: str) -> dict[str, str]:
    return dict.fromkeys(names, kind)


def convolutions(kind: str, exact: bool) -> dict[str, int]:
    """Of the key networks: 3 × 3 on 28 × 28 pixels, and 5 × 5 on 28 × 112."""
    found = {}
    sums = all_of(FLOAT, "sums", "added", "bias")
    tensors = all_of(kind, "x", "table", "y", "grad", "kept") | sums
    options = {"CHANNELS": 16, "RUN": 64, "WIDE": 16, "RELU": True, "EXACT": exact}
    options |= {"HEIGHT": 28, "WIDTH": 28}
    found["narrow"] = shared_memory(
        narrow_conv._convolve, tensors, narrow_conv._STAGES,
        BIAS=True, PIXELS=narrow_conv._PIXELS, **options,
    )  # fmt: skip
    found["narrow, back"] = shared_memory(
        narrow_conv._convolve_backward, tensors, narrow_conv._STAGES_BACK,
        PIXELS=narrow_conv._PIXELS_BACK, **options,
    )  # fmt: skip
    for side, padding, width in ((3, 1, 28), (5, 0, 112)):
        grown = 2 * padding - side + 1
        options = {"HEIGHT": 28, "WIDTH": width, "ROWS": 28 + grown, "COLS": width + grown}
        options |= {"CHANNELS": 1, "SIDE": side, "PADDING": padding, "WIDE": 32, "TAPS": 32}
        options |= {"PIXELS": images._PIXELS, "RELU": True, "EXACT": exact}
        thin = tensors | {"x": FLOAT}
        found[f"thin {side}"] = shared_memory(images._convolve, thin, **options)
        found[f"thin {side}, back"] = shared_memory(images._convolve_backward, thin, 1, **options)
    return found


def pools(kind: str) -> dict[str, int]:
    found = {}
    tensors = all_of(kind, "x", "y", "kept", "grad", "dx") | {"which": BYTE}
    tensors |= all_of(FLOAT, "sums", "factor", "added", "mean", "variance", "table", "bias")
    tensors |= all_of(FLOAT, "scale", "shift", "means", "variances", "factors", "summands")
    tensors |= all_of(FLOAT, "to_scale", "to_shift") | {"eps": "fp32"}
    for name in ("_state", "_return"):
        tile = {"ROWS": totals.ROWS, "COLS": totals.COLS}
        found[name] = shared_memory(getattr(norm_pool, name), tensors, **tile)
    for wide in (16, 64, 128):
        tile = images.tile_of(wide)
        for name in ("_sum_squares", "_sum_products"):
            found[f"{name} {wide}"] = shared_memory(getattr(norm_pool, name), tensors, **tile)
        for name in ("_largest", "_largest_backward"):
            kernel = getattr(norm_pool, name)
            found[f"{name} {wide}"] = shared_memory(kernel, tensors, SIZE=2, **tile)
    return found


def soft_sorts() -> dict[str, int]:
    """Of short rows, sorted in the kernel; of long ones in float64; of rows with many features."""
    found = {}
    tape = {"ints": "*i32"} | all_of(DOUBLE, "floats", "heats", "table", "totals")
    tensors = "given", "payload", "weights", "temperature", "out"
    short = all_of(FLOAT, *tensors) | tape
    long = short | all_of(DOUBLE, *tensors)
    for kind, back in itertools.product(range(4), (False, True)):
        options = {"KIND": kind, "BACK": back, "WEIGHTED": True}
        for size in (32, 1024):
            tile = {"HEAT": 0 if back else 2, "STAGE": 3, "SIGN": -1, "SIZE": size}
            found[f"{kind} {back} {size}"] = shared_memory(rows._rows, short, **options, **tile)
        for stage in range(3 if kind else 2):
            tile = {"HEAT": 0, "STAGE": stage, "SIGN": 1, "SIZE": 4096}
            found[f"{kind} {back}, {stage}"] = shared_memory(rows._rows, long, **options, **tile)
    for dtype, features in ((FLOAT, tiles.FEATURES), (DOUBLE, tiles.FEATURES // 2)):
        wide = all_of(dtype, "payload", "grad", "weights", "sums", "out", "parts") | tape
        tile = {"WEIGHTED": True, "NODES": tiles.NODES, "FEATURES": features}
        for kernel, nodes in itertools.product((tiles._far, tiles._near), range(3)):
            name = f"{kernel.__name__} {nodes} {dtype}"
            found[name] = shared_memory(kernel, wide, OF=nodes, **tile)
    return found


def sorts() -> dict[str, int]:
    found = soft_sorts()
    tensors = all_of(FLOAT, "keys", "losses", "slopes", "workspace") | {
        "groups": "*i32",
        "lengths": "*i32",
        "bend": "fp32",
    }
    for bent in (False, True):
        found[f"cut {bent}"] = shared_memory(
            likelihood._cut, tensors, BENT=bent, LANES=16, WIDTH=128
        )
    return found


if __name__ == "__main__":
    every = sorts()
    for kind, exact in ((HALF, False), (FLOAT, True)):
        more = convolutions(kind, exact) | pools(kind)
        every |= {f"{name}, {kind}": size for name, size in more.items()}
    print(json.dumps(every))
