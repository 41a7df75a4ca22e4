"""Measure the core on this machine: memory and accuracy of `spread`, a huge layer, small training.

Each measurement runs in a process of its own, since peak memory belongs to a process. The record
goes to results/core.jsonl, one JSON object a line, and the newest one to docs/measurements.md.

    python benchmarks/core.py
"""

import datetime
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "results" / "core.jsonl"
PAGE = ROOT / "docs" / "measurements.md"
MIB = 2**20


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(MEASUREMENTS[sys.argv[1]]()))
        return
    record: dict[str, Any] = {"command": "python benchmarks/core.py", **describe()}
    for name in MEASUREMENTS:
        print(f"{name} …", flush=True)
        record[name] = run(name)
        print(json.dumps(record[name], indent=2))
    RECORDS.parent.mkdir(exist_ok=True)
    with RECORDS.open("a") as file:
        file.write(json.dumps(record) + "\n")
    PAGE.write_text(page(record))
    print(f"record: {RECORDS}\npage: {PAGE}")


def run(name: str) -> dict[str, Any]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    command = [sys.executable, __file__, name]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{name} failed:\n{done.stderr}")
    return json.loads(done.stdout)


def describe() -> dict[str, Any]:
    import numpy
    import torch

    import sparsewire
    from sparsewire_lab import provenance

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=ROOT, capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    changed = bool(git("status", "--porcelain", "--", "src", "benchmarks"))
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": git("rev-parse", "HEAD") + ("+changes" if changed else ""),
        "device": f"{provenance.processor()}, one thread of {os.cpu_count()}",
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": numpy.__version__,
            "sparsewire": sparsewire.__version__,
        },
    }


def measure_import() -> dict[str, Any]:
    """Seconds that `import sparsewire` takes after torch is imported."""
    import torch  # noqa: F401

    start = time.perf_counter()
    import sparsewire  # noqa: F401

    return {"seconds_beyond_torch": time.perf_counter() - start}


def measure_spread() -> dict[str, Any]:
    """`spread` at k = 1,024, m = 24,576, r = 2 in float32, forward and backward."""
    import torch

    from sparsewire import ops

    torch.manual_seed(0)
    n, k = 1024, 1024
    means = (torch.rand(k, 2) * (n - 1)).requires_grad_()
    variances = (torch.rand(k, 2) * 10 + 0.1).requires_grad_()
    values = torch.randn(k).requires_grad_()
    indices = ops.sample(means, (n, n), (10, 10), 2, 18)
    excluded = ops.mark_repeats(indices, (n, n))
    weight = torch.randn(len(indices))
    inputs = (means, variances, values)

    def step(engine: Any, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out = engine(*tensors, indices, excluded)
        return out.detach(), *torch.autograd.grad(out, tensors, weight.to(out.dtype))

    before, start = memory_now(), time.perf_counter()
    ours = step(ops.spread, *inputs)
    seconds, extra = time.perf_counter() - start, memory_peak() - before
    start = time.perf_counter()
    step(ops.spread_reference, *inputs)
    reference_seconds, reference_extra = time.perf_counter() - start, memory_peak() - before
    exact = step(ops.spread_reference, *(t.detach().double().requires_grad_() for t in inputs))
    names = ("out", "means", "variances", "values")
    errors = {
        name: float((mine - true).abs().max() / true.abs().max())
        for name, mine, true in zip(names, ours, exact, strict=True)
    }
    return {
        "k": k,
        "m": len(indices),
        "extra_mib": extra / MIB,
        "seconds": seconds,
        "reference_seconds": reference_seconds,
        "reference_extra_mib": reference_extra / MIB,
        "largest_absolute_error": float((ours[0] - exact[0]).abs().max()),
        "relative_errors": errors,
    }


def measure_huge_layer() -> dict[str, Any]:
    """W of 2²⁰ × 2²⁰, 65,536 tuples in contexts of 64, batch 4, forward and backward."""
    import torch

    import sparsewire as sw

    n = 2**20
    layer = sw.SparseLayer((n,), (n,), tuples=65_536, context=64, seed=0)
    x = torch.randn(4, n)
    start = time.perf_counter()
    layer(x).square().sum().backward()
    return {"seconds": time.perf_counter() - start, "peak_mib": memory_peak() / MIB}


def measure_identity() -> dict[str, Any]:
    """Identity at n = 8 as in the paper, 10,000 steps, three seeds: values fixed at 1, or free."""
    fixed = {"values": 1.0, "learn_values": False}
    return {"fixed_values": train_identity(**fixed), "free_values": train_identity()}


def train_identity(**values: Any) -> list[dict[str, Any]]:
    import torch
    from torch.nn.functional import mse_loss

    import sparsewire as sw

    n, runs = 8, []
    for seed in (0, 1, 2):
        torch.manual_seed(seed)
        options: dict[str, Any] = {"local_samples": 1, "global_samples": 2, "seed": seed}
        layer = sw.SparseLayer((n,), (n,), tuples=n, **options, **values)
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.005, fused=True)
        start = time.perf_counter()
        for _ in range(10_000):
            x = torch.randn(64, n)
            optimizer.zero_grad()
            mse_loss(layer(x), x).backward()
            optimizer.step()
        seconds = time.perf_counter() - start
        x = torch.randn(10_000, n)
        error = mse_loss(layer.eval()(x), x).item()
        runs.append({"seed": seed, "seconds": seconds, "rounded_mse": error})
    return runs


def memory_now() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def memory_peak() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def page(record: dict[str, Any]) -> str:
    spread, huge = record["spread"], record["huge_layer"]
    runs, free = record["identity"]["fixed_values"], record["identity"]["free_values"]
    rows = [
        (
            f"`spread`, k = {spread['k']:,}, m = {spread['m']:,}, r = 2, float32, forward and "
            "backward: extra peak memory",
            f"{spread['extra_mib']:.0f} MiB (reference, which keeps the table: "
            f"{spread['reference_extra_mib']:,.0f} MiB)",
        ),
        ("… time", f"{spread['seconds']:.2f} s (reference: {spread['reference_seconds']:.2f} s)"),
        (
            "… largest difference from the float64 reference",
            f"{spread['largest_absolute_error']:.1e}",
        ),
        (
            "layer with W of 2²⁰ × 2²⁰, 65,536 tuples in contexts of 64, batch 4, forward and "
            "backward: peak memory of the process",
            f"{huge['peak_mib']:,.0f} MiB",
        ),
        ("… time", f"{huge['seconds']:.2f} s"),
        (
            "identity, n = 8, values fixed at 1, 10,000 steps: rounded MSE for seeds "
            + ", ".join(str(run["seed"]) for run in runs),
            ", ".join(f"{run['rounded_mse']:.2g}" for run in runs),
        ),
        (
            "… the same with free values, from N(0, 1)",
            ", ".join(f"{run['rounded_mse']:.2g}" for run in free),
        ),
        ("… seconds for each, values fixed", ", ".join(f"{run['seconds']:.1f}" for run in runs)),
        (
            "`import sparsewire`, after torch",
            f"{record['import']['seconds_beyond_torch']:.3f} s",
        ),
    ]
    table = "\n".join(f"| {what} | {measured} |" for what, measured in rows)
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    return f"""# Measurements

Written by `{record["command"]}` from its newest record in `results/core.jsonl`; not edited by hand.

| what | measured |
|---|---|
{table}

{record["device"]}; {versions}; commit `{record["commit"]}`; {record["date"]}.
"""


MEASUREMENTS = {
    "import": measure_import,
    "spread": measure_spread,
    "huge_layer": measure_huge_layer,
    "identity": measure_identity,
}

if __name__ == "__main__":
    main()
