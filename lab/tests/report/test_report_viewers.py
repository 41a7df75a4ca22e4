"""Files of arrays → what the viewers show: which runs, which frames, and numbers as they were."""

import base64
from io import BytesIO
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
from PIL import Image

from sparsewire_lab.report.benchmarks import cases, chart
from sparsewire_lab.report.curves import chart as curves_of
from sparsewire_lab.report.entries import Entry, entries_of
from sparsewire_lab.report.glimpses import galleries
from sparsewire_lab.report.load import load
from sparsewire_lab.report.origin import origins
from sparsewire_lab.report.results import full_head, full_row, summary
from sparsewire_lab.report.sorting import strips
from sparsewire_lab.report.wiring import wirings
from sparsewire_lab.train.records import Record


def unpacked(found: dict[str, Any]) -> np.ndarray:
    data = np.frombuffer(base64.b64decode(found["data"]), f"<{found['kind']}")
    return data.reshape(found["shape"])


def loaded(folder: Path, *records: dict[str, Any]) -> list[Record]:
    return load([write(folder / "runs.jsonl", *records)]).records


def entries(folder: Path, *records: dict[str, Any]) -> list[Entry]:
    """The settings of runs of one experiment."""
    return entries_of(records[0]["experiment"], loaded(folder, *records))


def test_wires_are_shown_as_they_were(tmp_path: Path) -> None:
    save_wiring(tmp_path / "w.npz", frames=6, sizes=(3, 3))
    (view,) = wirings(loaded(tmp_path, for_report("identity", wiring="w.npz")), [])
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
    assert wirings(loaded(tmp_path, for_report("identity", wiring="w.npz")), []) == []


def test_galleries_show_tracked_images_and_some_mistakes(tmp_path: Path) -> None:
    save_frames(tmp_path / "a.npz", tracked=9, mistakes=7, boxes=2)
    runs = [for_report("attention", seed, wiring="a.npz", canvas=30) for seed in (1, 0)]
    (shown,) = galleries(entries(tmp_path, *runs), [])
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
    plain = "1 glimpse of 32 × 32"
    assert [shown["name"] for shown in galleries(entries(tmp_path, *runs), [])] == [
        f"{plain}, canvas 100 × 100, seed 0",
        f"{plain}, canvas 400 × 400, seed 0",
        f"{plain}, paper's settings, canvas 100 × 100, seed 0",
        "spatial transformer, canvas 100 × 100, seed 0",
        f"{plain}, validation, canvas 100 × 100, seed 0",
    ]


def test_a_number_of_the_paper_is_given_once(tmp_path: Path) -> None:
    presets = ("ours", "paper")
    runs = [for_report("attention", preset=preset) | {"key": preset} for preset in presets]
    (row,) = summary("attention", entries(tmp_path, *runs))
    assert len(row.ours) == 2
    assert row.paper == ["1 glimpse of 32 × 32: 0.85\u00a0%"]
    task: dict[str, Any] = {"size": 16, "places": 3, "data": "mnist"}
    methods = ("exact", "sampled", "odd_even")
    runs = [for_report("sorting", method=method, **task) for method in methods]
    (row,) = summary("sorting", entries(tmp_path, *runs))
    assert row.paper == ["sampled quicksort, strict error: around 40\u00a0%"]
    assert (len(row.ours), len(row.baselines)) == (2, 1)


def test_a_sort_is_shown_level_by_level(tmp_path: Path) -> None:
    save_keys(tmp_path / "s.npz", places=2)
    (strip,) = strips(entries(tmp_path, for_report("sorting", wiring="s.npz", places=2)), [])
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
    names = [strip["name"] for strip in strips(entries(tmp_path, *runs), [])]
    assert len(names) == 6
    for size, ours, paper in zip((4, 8, 16), names[::2], names[1::2], strict=True):
        assert ours.startswith(f"sort {size} numbers of 1 digit, small digits: likelihood")
        assert "paper's settings" in paper


def test_eight_numbers_are_shown_first(tmp_path: Path) -> None:
    for n in (4, 8, 16):
        halves = np.broadcast_to(np.eye(n), (3, n.bit_length() - 1, n, n))
        images = np.zeros((n, 3, 6, 5), np.uint8)
        arrays = {"keys": np.zeros((3, n)), "values": np.arange(n)}
        save_keys(tmp_path / f"{n}.npz", halves=halves, images=images, **arrays)
    save_keys(tmp_path / "2.npz", halves=None, images=None)
    runs = [
        for_report("sorting", wiring=f"{n}.npz", size=n, places=3) | {"key": str(n)}
        for n in (2, 4, 8, 16)
    ]
    shown = strips(entries(tmp_path, *runs), [])
    assert [strip["levels"] for strip in shown] == [3, 2, 4, 0]
    assert "images" not in shown[3]
    # The digits of a number are one picture: three of 5 × 6 pixels.
    with Image.open(BytesIO(base64.b64decode(shown[2]["images"][0].partition(",")[2]))) as image:
        assert image.size == (15, 6)


def test_curves_keep_all_points_of_few_runs_and_some_of_many(tmp_path: Path) -> None:
    long = {"step": list(range(5000)), "error": [0.5] * 5000}
    runs = for_report("identity"), for_report("identity", 1, curve=long)
    curves = curves_of("identity", entries(tmp_path, *runs))
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
    every = entries_of(experiment, load([fill(tmp_path / "all")]).of(experiment))
    for entry in every:
        assert len(full_row(experiment, entry)) == len(full_head(experiment))
    assert summary(experiment, every)
    diverged = for_report("identity", status="diverged", final=None)
    (task,) = summary("identity", entries(tmp_path, diverged))
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
