"""Compile kernels for a GPU where there is none; print the shared memory that each needs, as JSON.

The interpreter finds what is computed wrongly, and not what a compiler refuses or what fits into no
GPU. Run in a process of its own, without the interpreter.
"""

import json
from typing import Any

import triton  # pyright: ignore[reportMissingImports]
from triton.backends.compiler import GPUTarget  # pyright: ignore[reportMissingImports]
from triton.compiler import ASTSource  # pyright: ignore[reportMissingImports]

from sparsewire.sorting.order_loss._triton import kernels as likelihood
from sparsewire.sorting.soft_sort._triton import recurrence, rows
from sparsewire.sorting.soft_sort._triton import scans as soft
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
    short = all_of(FLOAT, "keys", "weights", "other", "temperature", "grad", "more", "out")
    short |= all_of(DOUBLE, "points", "heats", "places", "offsets", "means", "table")
    short |= all_of("*i32", "order", "slots", "below") | {"number": "fp32", "to_other": FLOAT}
    long = short | all_of(DOUBLE, "weights", "other", "grad", "more", "out", "to_other")
    long |= all_of(DOUBLE, "decays", "terms") | {"order": "*i64"}
    forward = (soft.RANK, True), (soft.MIX, True), (soft.MIX, False), (soft.PLAN, False)
    back = (soft.RANK_BACK, True), (soft.MIX_BACK, True), (soft.MIX_BACK, False)
    for mode, own in (*forward, *back, (soft.PLAN_BACK, False)):
        name, options = f"{mode.value} {own}", {"MODE": mode.value, "OWN": own, "WEIGHTED": own}
        for size, phase in ((32, 0), (1024, 2)):
            extra = {"SIGN": -1, "SIZE": size}
            kernel, extra = (
                (rows._short, extra | {"HEAT": 2})
                if (mode, own) in forward
                else (rows._short_back, extra)
            )
            found[f"short {name} {size}"] = shared_memory(kernel, short, **options, **extra)
            tile = {"SIGN": 1, "SIZE": 2048}
            found[f"scan {name} {phase}"] = shared_memory(
                rows._scan, long, PHASE=phase, **options, **tile
            )
        if mode.value in (soft.MIX.value, soft.PLAN.value):
            tile = {"MODE": mode.value, "OWN": own, "SIZE": 2048}
            found[f"settle {name}"] = shared_memory(rows._settle, long, **tile)
        if mode.value in (soft.MIX_BACK.value, soft.PLAN_BACK.value):
            tile = {"SIGN": 1, "SIZE": 2048}
            found[f"to keys {name}"] = shared_memory(rows._to_keys, long, **options, **tile)
    lines = all_of(DOUBLE, "decays", "terms", "out", "whole", "carry")
    for phase in range(3):
        found[f"recur {phase}"] = shared_memory(
            recurrence._recur, lines, CHUNK=1024, STEPS=16, PHASE=phase
        )
    tile = {"NODES": tiles.NODES, "FEATURES": tiles.FEATURES, "WEIGHTED": True}
    many = short | all_of(FLOAT, "payload", "sums", "parts", "factors")
    found["factors"] = shared_memory(tiles._factors, many, WEIGHTED=True, SIZE=1024)
    for back in (False, True):
        found[f"carry {back}"] = shared_memory(tiles._carry, many, BACK=back, **tile)
    for mode in range(3):
        found[f"mix {mode}"] = shared_memory(tiles._mix, many, MODE=mode, CARRY=True, **tile)
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
