"""Rows of a record as a run would write them, and small cases."""

from typing import Any

from sparsewire_lab.bench.cases import Case
from sparsewire_lab.bench.record import Row, complete

RATES = {"copy": 2e10, "exp": 1e9, "matmul float32": 1e11}


def make_row(**columns: Any) -> Row:
    usual: dict[str, Any] = {"date": "2030-01-02T03:04:05+00:00", "commit": "abc", "plan": "full"}
    usual |= {"device": "a machine", "torch": "2.13", "status": "ok", "note": ""}
    usual |= {"case": "spread", "variant": "", "engine": "auto", "mode": "eager"}
    usual |= {"n": 64, "k": 64, "m": 1536, "r": 2, "batch": 0, "pairs": 64 * 1536}
    usual |= {"ms_forward": 1.0, "ms_forward_backward": 2.0, "noise": 0.04, "extra_mib": 5.0}
    usual |= {"error": 1e-7, "floor_ms": 0.5, "near_floor_ms": 0.25, "floor_limit": "exp"}
    return complete(usual | columns)


def make_record() -> list[Row]:
    """Three sizes of two engines that grow as n² and n, one of them skipped at the last size."""
    usual = {"case": "ceilings", "n": None, "unit": "/s", "ms_forward_backward": None}
    rows = [make_row(engine=name, rate=rate, **usual) for name, rate in RATES.items()]
    for n in (10, 100, 1000):
        slow = {"engine": "reference", "n": n, "ms_forward_backward": 3e-2 * n**2}
        rows.append(make_row(**slow, extra_mib=1e-3 * n**2))
        rows.append(make_row(n=n, ms_forward_backward=1e-2 * n**2, extra_mib=1e-2 * n))
    missing = dict.fromkeys(("ms_forward", "ms_forward_backward", "extra_mib", "error"))
    note = "its tables would not fit | at all"
    rows.append(make_row(engine="plain", n=1000, status="skipped", note=note, **missing))
    return rows


def sort_case(case: str, engine: str, n: int = 8) -> Case:
    """A case of sorting that takes no time."""
    return Case(case, engine, n, "16" if case == "sort_by" else "", batch=3)
