"""`sparsewire figures`: what it draws from which records, what it prints, what it leaves out."""

from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from lab.tests.figures.samples import (
    make_attention,
    make_identity,
    make_sorting,
    save_frames,
    save_keys,
    save_wiring,
    write,
)

from sparsewire_lab.attention import figures as attention
from sparsewire_lab.cli.figures import draw_all
from sparsewire_lab.cli.main import main
from sparsewire_lab.figures.album import Album
from sparsewire_lab.figures.tables import marks
from sparsewire_lab.sorting import figures as sorting
from sparsewire_lab.train.records import array_file

MAKE = {"identity": make_identity, "attention": make_attention, "sorting": make_sorting}
FALLING = [0.9, 0.1]


def test_every_figure_that_there_are_runs_for_is_drawn(tmp_path: Path) -> None:
    save_wiring(tmp_path / "wires.npz", sizes=(32, 32))
    save_frames(tmp_path / "frames.npz", boxes=2)
    save_keys(tmp_path / "keys.npz")
    save_keys(tmp_path / "peer.npz", halves=None, images=None)
    shape: dict[str, Any] = {"glimpses": 2, "size": 5, "canvas": 60}
    file = write(
        tmp_path / "r.jsonl",
        make_identity(FALLING, size=32, other={"wiring": "wires.npz"}),
        make_identity(FALLING, size=64, method="rewire"),
        make_identity([9.0, 8.0], size=64, method="rewire", target="band"),
        make_attention(FALLING, key="g", **shape, other={"wiring": "frames.npz"}),
        make_attention(FALLING, key="c", model="convnet"),
        make_sorting(FALLING, key="o", size=4, other={"wiring": "keys.npz"}),
        make_sorting(
            FALLING, key="p", size=4, preset="paper", method="sampled", other={"wiring": "keys.npz"}
        ),
        make_sorting(FALLING, key="s", size=8, method="softsort", other={"wiring": "peer.npz"}),
        make_sorting(FALLING, key="d", data="digits", places=1),
        make_sorting(FALLING, key="m", other={"wiring": "missing.npz"}),
    )
    album = draw_all(file, tmp_path / "figures")
    identity = ["errors.png", "rewire.png", "scaling.png"]
    identity += ["32-matrix.png", "32-wiring.png", "32-wiring.gif"]
    glimpses = ["errors-60.png", "errors-100.png"]
    glimpses += ["2x5-60-glimpses.png", "2x5-60-boxes.png", "2x5-60-boxes.gif"]
    sorts = ["errors-1-digits.png", "errors-3.png", "4x3-keys.png", "4x3-steps.png"]
    sorts += ["4x3-paper-keys.png", "4x3-paper-steps.png", "8x3-keys.png"]
    names = {"identity": identity, "attention": glimpses, "sorting": sorts}
    expected = [f"{experiment}-{name}" for experiment in names for name in names[experiment]]
    assert [path.name for path in album.drawn] == expected
    assert all(path.stat().st_size > 1000 for path in album.drawn)
    assert album.notes == []


def chosen(module: ModuleType, folder: Path, *runs: dict[str, Any]) -> list[tuple[str, Any]]:
    """Names of figures, with the keys of their records or the names of their files.

    These are not read.
    """
    album, seen = Album(folder / "r.jsonl", folder), []
    reader = "read_frames" if module is attention else "read_keys"

    def note(name: str, make: partial) -> None:
        (source, *_) = make.args
        keys = [run["key"] for run in source] if isinstance(source, list) else source.name
        seen.append((name, keys))

    album.add = album.animate = note  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, reader, lambda path: SimpleNamespace(name=path.name, halves=True))
        module.draw([run | {"file": array_file(run, folder)} for run in runs], album)
    return seen


@pytest.mark.parametrize(
    ("module", "experiment", "tasks"),
    [
        (attention, "attention", [{"canvas": 100}, {"canvas": 400}, {"canvas": 60}]),
        (sorting, "sorting", [{"places": 3}, {"places": 4}, {"places": 1}]),
    ],
)
def test_curves_are_those_of_the_test_set_if_there_are_any(
    module: ModuleType, experiment: str, tasks: list[dict[str, Any]], tmp_path: Path
) -> None:
    make, (first, second, third) = MAKE[experiment], tasks
    found = chosen(
        module,
        tmp_path,
        make(FALLING, key="tried", split="validation", **first),
        make(FALLING, key="tested", **first),
        make(FALLING, key="tested", seed=1, other={"status": "diverged"}, **first),
        make(FALLING, key="other", split="validation", **second),
        make(FALLING, key="lost", other={"status": "diverged"}, **third),
    )
    numbers = [task.popitem()[1] for task in (first, second)]
    assert found == [
        (f"{experiment}-errors-{numbers[0]}", ["tested", "tested"]),
        (f"{experiment}-errors-{numbers[1]}", ["other"]),
    ]


# Settings with the same name of a figure, the last of them first to be drawn.
SAME_NAME: list[tuple[ModuleType, str, list[dict[str, Any]], list[str]]] = [
    (
        attention,
        "attention",
        [
            {"date": "2026-09-09", "preset": "paper"},
            {"date": "2026-09-09", "split": "validation"},
            {"date": "2026-09-09", "model": "transformer", "size": 8},
            {"date": "2026-01-02", "region": 20},
            {"date": "2026-01-03", "region": 10},
        ],
        ["attention-1x32-100-glimpses", "attention-1x32-100-boxes", "attention-1x32-100-boxes"],
    ),
    (
        sorting,
        "sorting",
        [
            {"date": "2026-09-09", "split": "validation"},
            {"date": "2026-09-09", "method": "exact"},
            {"date": "2026-09-09", "method": "odd_even"},
            {"date": "2026-01-04", "steps": 100},
            {"date": "2026-01-02", "lr": 0.1},
            {"date": "2026-01-03", "lr": 0.2},
        ],
        ["sorting-16x3-keys", "sorting-16x3-steps"],
    ),
]


@pytest.mark.parametrize(("module", "experiment", "settings", "figures"), SAME_NAME)
def test_one_setting_is_drawn_for_each_name(
    module: ModuleType,
    experiment: str,
    settings: list[dict[str, Any]],
    figures: list[str],
    tmp_path: Path,
) -> None:
    """Test before validation set, ours before others, the longest, the last; the lowest seed."""
    runs = []
    for number, setting in enumerate(settings):
        for seed in (2, 1, 0):
            (tmp_path / f"{number}-{seed}.npz").touch()
            other = {"wiring": f"{number}-{seed}.npz", "date": setting["date"]}
            other |= {"status": "diverged"} if seed == 0 else {}
            given = {name: value for name, value in setting.items() if name != "date"}
            runs.append(MAKE[experiment](FALLING, f"k{number}", seed, other=other, **given))
    for order in (runs, runs[::-1]):
        drawn = [pair for pair in chosen(module, tmp_path, *order) if "errors" not in pair[0]]
        assert drawn == [(name, f"{len(settings) - 1}-1.npz") for name in figures]


@pytest.mark.parametrize(
    ("experiment", "cells"),
    [
        ("identity", "| 8 | identity | sparse |"),
        ("attention", "| 10.00 |"),
        ("sorting", "| likelihood | order | ours | 1,000 × 64, 1 s | 1 | 10.00 |"),
    ],
)
def test_the_command_prints_where_figures_and_table_are(
    experiment: str, cells: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("\n".join(marks()))
    save_wiring(tmp_path / "wires.npz")
    wires = {"wiring": "wires.npz"} if experiment == "identity" else {}
    file = write(tmp_path / "r.jsonl", MAKE[experiment](FALLING, other=wires))
    assert main(["figures", str(file), "--no-animation", "--page", str(page)]) == 0
    first, *others = capsys.readouterr().out.splitlines()
    assert first == f"table: {page}"
    assert cells in page.read_text()
    assert others
    assert all(Path(line.removeprefix("figure: ")).exists() for line in others)
    assert not list(tmp_path.rglob("*.gif"))


@pytest.mark.parametrize(
    ("words", "status", "why"),
    [
        (["nowhere.jsonl"], 2, "nowhere.jsonl must be a file of records"),
        (["r.jsonl", "--page", "nowhere.md"], 2, "nowhere.md"),
        (["mixed.jsonl", "--page", "page.md"], 2, "must be of one experiment"),
        (["empty.jsonl"], 1, "holds no runs to draw"),
    ],
)
def test_what_cannot_be_drawn_is_named(
    words: list[str],
    status: int,
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("page.md").write_text("\n".join(marks()))
    write(Path("r.jsonl"), make_identity(FALLING))
    write(Path("mixed.jsonl"), make_identity(FALLING), make_sorting(FALLING))
    write(Path("empty.jsonl"))
    assert main(["figures", *words]) == status
    assert why in capsys.readouterr().err
