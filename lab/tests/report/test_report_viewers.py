"""Files of arrays → what the viewers show: which runs, which frames, and numbers as they were."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab.tests.figures.samples import (
    fill,
    for_report,
    save_frames,
    save_keys,
    save_wiring,
    write,
    write_bench,
)

from sparsewire_lab.report.benchmarks import cases, chart
from sparsewire_lab.report.curves import chart as curves_of
from sparsewire_lab.report.entries import entries_of
from sparsewire_lab.report.glimpses import galleries
from sparsewire_lab.report.load import Results, load
from sparsewire_lab.report.origin import origins
from sparsewire_lab.report.results import full_head, full_row, summary
from sparsewire_lab.report.sorting import strips
from sparsewire_lab.report.wiring import wirings

KINDS = {"u1": "<u1", "u2": "<u2", "f4": "<f4"}


def unpacked(found: dict[str, Any]) -> np.ndarray:
    data = np.frombuffer(base64.b64decode(found["data"]), KINDS[found["kind"]])
    return data.reshape(found["shape"])


def loaded(folder: Path, *records: dict[str, Any]) -> Results:
    return load([write(folder / "runs.jsonl", *records)])


def test_wires_are_shown_as_they_were(tmp_path: Path) -> None:
    save_wiring(tmp_path / "w.npz", frames=6, sizes=(3, 3))
    found = loaded(tmp_path, for_report("identity", wiring="w.npz"))
    (view,) = wirings(found.records, [])
    with np.load(tmp_path / "w.npz") as file:
        np.testing.assert_array_equal(unpacked(view["means"]), file["means"])
        np.testing.assert_array_equal(unpacked(view["variances"]), file["variances"])
        indices = file["indices"]
    assert view["step"] == [0, 100, 200, 300, 400, 500]
    assert view["error"][0] == 0.5
    assert view["error"][-1] == 0.0
    spots = np.split(unpacked(view["spots"]), np.cumsum(view["counts"])[:-1])
    for there, drawn in zip(spots, indices, strict=True):
        assert {tuple(place) for place in there} == {tuple(place) for place in drawn}
        assert len(there) < len(drawn)  # repeats are left out
    save_wiring(tmp_path / "w.npz", sizes=(300, 300))  # too large to see
    assert wirings(loaded(tmp_path, for_report("identity", wiring="w.npz")).records, []) == []


def test_galleries_show_tracked_images_and_some_mistakes(tmp_path: Path) -> None:
    save_frames(tmp_path / "a.npz", tracked=9, mistakes=7, boxes=2)
    runs = [for_report("attention", seed, wiring="a.npz", canvas=30) for seed in (1, 0)]
    found = loaded(tmp_path, *runs)
    (shown,) = galleries(entries_of("attention", found.records), [])
    assert "seed 0" in shown["name"]
    assert shown["tracked"] == 8
    wrong = [card["truth"] != card["answer"] for card in shown["cards"]]
    assert wrong == [False] * 8 + [True] * 4
    with np.load(tmp_path / "a.npz") as file:
        boxes, sampled = file["corners"], file["sampled"]
    np.testing.assert_allclose(unpacked(shown["boxes"]), boxes[:, :8], atol=0.051)
    chosen = [*range(8), *range(9, 13)]
    np.testing.assert_array_equal(unpacked(shown["sampled"]), 10 * sampled[chosen])


def test_our_galleries_come_first_and_no_two_have_one_name(tmp_path: Path) -> None:
    """Baselines of a small canvas do not take the place of glimpses on a large one."""
    save_frames(tmp_path / "a.npz")
    settings: list[dict[str, Any]] = [
        {"model": "transformer"},
        {"preset": "paper"},
        {"split": "validation"},
        {},
        {"canvas": 400},
    ]
    runs = [
        for_report("attention", wiring="a.npz", **setting) | {"key": str(number)}
        for number, setting in enumerate(settings)
    ]
    found = loaded(tmp_path, *runs)
    plain = "1 glimpse of 32 × 32"
    assert [shown["name"] for shown in galleries(entries_of("attention", found.records), [])] == [
        f"{plain}, canvas 100 × 100, seed 0",
        f"{plain}, canvas 400 × 400, seed 0",
        f"{plain}, paper's settings, canvas 100 × 100, seed 0",
        "spatial transformer, canvas 100 × 100, seed 0",
        f"{plain}, validation, canvas 100 × 100, seed 0",
    ]


def test_a_number_of_the_paper_is_given_once(tmp_path: Path) -> None:
    runs = [
        for_report("attention", preset=preset) | {"key": preset} for preset in ("ours", "paper")
    ]
    task: dict[str, Any] = {"size": 16, "places": 3, "data": "mnist"}
    methods = ("exact", "sampled", "odd_even")
    runs += [for_report("sorting", method=method, **task) for method in methods]
    found = loaded(tmp_path, *runs)
    (row,) = summary("attention", entries_of("attention", found.of("attention")))
    assert len(row.ours) == 2
    assert row.paper == ["1 glimpse of 32 × 32: 0.85\u00a0%"]
    (row,) = summary("sorting", entries_of("sorting", found.of("sorting")))
    assert row.paper == ["sampled quicksort, strict error: around 40\u00a0%"]
    assert (len(row.ours), len(row.baselines)) == (2, 1)


def test_a_sort_is_shown_level_by_level(tmp_path: Path) -> None:
    save_keys(tmp_path / "s.npz", places=2)
    found = loaded(tmp_path, for_report("sorting", wiring="s.npz", places=2))
    (strip,) = strips(entries_of("sorting", found.records), [])
    assert (strip["levels"], strip["places"], len(strip["images"])) == (2, 2, 4)
    assert strip["misplaced"] == [4, 2, 0]
    assert strip["spearman"][-1] == 1.0
    halves = unpacked(strip["halves"]) / 255
    with np.load(tmp_path / "s.npz") as file:
        np.testing.assert_allclose(halves, file["halves"], atol=0.003)


def test_both_presets_of_each_task_are_shown_before_others(tmp_path: Path) -> None:
    """Six in all, of runs that left a file."""
    save_keys(tmp_path / "s.npz")
    runs = [
        for_report("sorting", method=method, size=size, preset=preset, loss=loss, wiring="s.npz")
        | {"key": f"{size}{method}{preset}"}
        for size in (4, 8, 16)
        for method, preset, loss in (
            ("likelihood", "ours", "order"),
            ("exact", "ours", "permutation"),
            ("sampled", "paper", "steps"),
        )
    ]
    runs.append(
        for_report("sorting", method="likelihood", size=32, loss="order") | {"key": "no file"}
    )
    found = loaded(tmp_path, *runs)
    names = [strip["name"] for strip in strips(entries_of("sorting", found.records), [])]
    assert len(names) == 6
    for size, (ours, paper) in zip(
        (4, 8, 16), zip(names[::2], names[1::2], strict=True), strict=True
    ):
        assert ours.startswith(f"sort {size} numbers of 1 digit, small digits: likelihood")
        assert "paper's settings" in paper


def save_sort(path: Path, n: int) -> None:
    """Numbers of three digits that were in order from the start."""
    arrays = {
        "step": np.arange(1),
        "keys": np.arange(n, dtype=np.float32)[None],
        "values": np.arange(n),
        "halves": np.broadcast_to(np.eye(n), (1, n.bit_length() - 1, n, n)).astype(np.float16),
        "images": np.zeros((n, 3, 6, 5), np.uint8),
    }
    np.savez(path, **arrays)


def test_eight_numbers_are_shown_first(tmp_path: Path) -> None:
    for n in (4, 8, 16):
        save_sort(tmp_path / f"{n}.npz", n)
    save_keys(tmp_path / "2.npz", halves=None, images=None)
    runs = [
        for_report("sorting", wiring=f"{n}.npz", size=n, places=3) | {"key": str(n)}
        for n in (2, 4, 8, 16)
    ]
    shown = strips(entries_of("sorting", loaded(tmp_path, *runs).records), [])
    assert [strip["levels"] for strip in shown] == [3, 2, 4, 0]
    assert "images" not in shown[3]
    # The digits of a number are one picture: three of 5 × 6 pixels.
    head = base64.b64decode(shown[2]["images"][0].partition(",")[2])[16:24]
    assert (int.from_bytes(head[:4]), int.from_bytes(head[4:])) == (15, 6)


def test_curves_keep_all_points_of_few_runs_and_some_of_many(tmp_path: Path) -> None:
    long = {"step": list(range(5000)), "error": [0.5] * 5000}
    found = loaded(tmp_path, for_report("identity"), for_report("identity", 1, curve=long))
    curves = curves_of("identity", entries_of("identity", found.records))
    assert curves is not None
    few, many = curves["tasks"][0]["lines"][0]["runs"]
    assert few["step"] == [0, 100, 200, 300, 400, 500]
    assert few["loss"][0] is None
    assert len(many["step"]) == 400
    assert (many["step"][0], many["step"][-1]) == (0, 4999)
    assert set(many["seconds"]) == {None}


@pytest.mark.parametrize("experiment", ["identity", "attention", "sorting"])
def test_rows_have_as_many_cells_as_their_head(tmp_path: Path, experiment: str) -> None:
    """And say of runs that diverged that they did."""
    found = load([fill(tmp_path / "all")])
    entries = entries_of(experiment, found.of(experiment))
    for entry in entries:
        assert len(full_row(experiment, entry)) == len(full_head(experiment))
    assert summary(experiment, entries)
    found = loaded(tmp_path, for_report("identity", status="diverged", final=None))
    (task,) = summary("identity", entries_of("identity", found.records))
    assert (task.ours[0].text, task.ours[0].seeds) == ("diverged", "1 of 1 diverged")


def test_benchmarks_are_those_of_the_newest_run(tmp_path: Path) -> None:
    found = load([], write_bench(tmp_path / "r.csv"))
    ((device, case, rows),) = cases(found.bench)
    assert (device, case, len(rows)) == ("a machine", "spread", 6)
    growth = chart(found.bench)
    assert growth is not None
    ours, peer = growth["tasks"][0]["lines"]
    assert ours["name"] == "ours (∝ n^1.00)"
    assert ours["runs"][0]["n"] == [64, 256, 1024]
    assert peer["runs"][0]["time"] == [6.4, 25.6]


def test_origins_are_counted(tmp_path: Path) -> None:
    found = load([fill(tmp_path)], write_bench(tmp_path / "r.csv"))
    rows = origins(found)
    assert ("a machine", "identity, 6 runs", "python 3.11.0, torch 2.13.0") in [r[:3] for r in rows]
    assert {row[3] for row in rows} == {"0123456789", "0123"}
    assert {row[4] for row in rows} == {"2026-01-02"}
