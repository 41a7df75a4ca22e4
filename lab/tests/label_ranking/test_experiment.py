"""The whole command on a tiny wheel, what it records, and the page made of the records."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from lab.tests.label_ranking.wheels import make_wheel

from sparsewire_lab.cli.main import main
from sparsewire_lab.figures.tables import marks
from sparsewire_lab.label_ranking import data
from sparsewire_lab.label_ranking.experiment import LabelRanking
from sparsewire_lab.label_ranking.fitting import Models, Plan, Setting, cross_validate
from sparsewire_lab.label_ranking.methods import METHODS
from sparsewire_lab.label_ranking.table import fill_label_ranking, results_of
from sparsewire_lab.train import records

ROOT = Path(__file__).resolve().parents[3]
SMALL = ["--data-sets", "iris", "wine", "--folds", "3", "--steps", "30", "--hidden", "4"]


def command(tmp_path: Path, *words: str) -> list[str]:
    return ["label-ranking", *SMALL, "--wheel", str(tmp_path), "--out", str(tmp_path), *words]


def read(tmp_path: Path) -> list[dict[str, Any]]:
    return records.read_all(tmp_path / "label_ranking.jsonl")[0]


def test_folds_are_tested_once_and_a_linear_order_is_learned(tmp_path, monkeypatch):
    found = data.load("iris", make_wheel(tmp_path, monkeypatch))
    for name in ("spearman", "likelihood", "regression"):
        scores = cross_validate(found, METHODS[name], Plan(200, 64, 0, 5), seed=0)
        assert len(scores.kendall) == len(scores.spearman) == len(scores.settings) == 5
        assert min(scores.kendall) > 0.75


@pytest.mark.parametrize("hidden", [0, 3])
def test_models_of_a_batch_are_those_trained_alone(hidden, tmp_path, monkeypatch):
    found = data.load("iris", make_wheel(tmp_path, monkeypatch))
    settings = [Setting(0.3, 0.05, 0.1), Setting(1.0, 0.01, 0.0)]
    rows = torch.arange(60).split(30)
    plan, method = Plan(7, 8, hidden, 2), METHODS["spearman"]
    both = Models(found, rows, [settings] * 2, method, plan, seed=0).predict(rows)
    for number, setting in enumerate(settings):
        alone = Models(found, rows, [[setting]] * 2, method, plan, seed=0).predict(rows)
        for (many, target), (one, same) in zip(both, alone, strict=True):
            torch.testing.assert_close(many[number], one[0])
            assert torch.equal(target, same)
    assert torch.equal(both[0][1], 2 - found.ranks[:30])  # the most preferred label is the highest


def test_the_command_records_every_run_and_does_none_twice(tmp_path, monkeypatch, capsys):
    make_wheel(tmp_path, monkeypatch)
    methods = ["--methods", "spearman", "regression"]
    assert main(command(tmp_path, *methods, "--models", "linear")) == 0
    found = read(tmp_path)
    assert len(found) == 4
    for record in found:
        assert record["command"].startswith("sparsewire label-ranking --data-sets iris wine")
        assert record["arguments"]["hidden"] == 0
        assert -1 <= record["final"]["kendall"] <= 1
        assert len(record["folds"]["kendall"]) == len(record["folds"]["settings"]) == 3
        assert record["versions"]["torch"] == torch.__version__
    capsys.readouterr()
    assert main(command(tmp_path, *methods, "--dry-run")) == 0
    said = capsys.readouterr().out
    assert "4 runs, 108 models; 4 runs are recorded already" in said
    assert "iris, mlp, regression, seed 0" in said
    assert main(command(tmp_path, *methods, "--quiet")) == 0
    assert capsys.readouterr().out == ""
    assert len(read(tmp_path)) == 8
    assert len({record["key"] for record in read(tmp_path)}) == 8


def test_the_same_seed_gives_the_same_numbers(tmp_path, monkeypatch):
    found = data.load("wine", make_wheel(tmp_path, monkeypatch))
    one, two, other = (
        cross_validate(found, METHODS["torchsort"], Plan(20, 16, 3, 3), seed) for seed in (1, 1, 2)
    )
    assert one == two
    assert one != other


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data-sets", "tea"], "data_sets must be some of authorship, "),
        (["--data-sets", "iris", "iris"], "data_sets must be different, and at least one"),
        (["--folds", "1"], "folds must be at least 2; got 1"),
        (["--steps", "0"], "steps must be at least 1; got 0"),
        (["--seeds", "-1"], "seeds must be at least 0 and below"),
        (["--methods", "tea"], "--methods"),
    ],
)
def test_wrong_arguments_are_refused(words, message, tmp_path, capsys):
    assert main(["label-ranking", "--out", str(tmp_path), *words]) == 2
    assert message in capsys.readouterr().err


def runs_of(**numbers: list[float]) -> list[dict[str, Any]]:
    return [
        {
            "arguments": {"data_set": f"set {i}", "model": "mlp", "method": method},
            "final": {"kendall": number, "spearman": number},
        }
        for method, column in numbers.items()
        for i, number in enumerate(column)
    ]


def test_the_tables_say_what_is_best_and_what_is_significant():
    low = [0.1 * i for i in range(8)]
    runs = runs_of(spearman=[x + 0.1 for x in low], torchsort=low, regression=[*low[:7]])
    results = results_of(runs, "mlp")
    assert results.data_sets == [f"set {i}" for i in range(7)]  # that all of them have
    names = [f"{model} {kind}" for model in ("linear", "mlp") for kind in ("table", "tests")]
    page = "".join("{}\n{}\n".format(*marks(name)) for name in names)
    filled = fill_label_ranking(page, runs)
    assert "No run is recorded yet." in filled
    assert "| set 0 | **0.100** | 0.000 | 0.000 |" in filled
    assert "| *mean rank* | **1.00** | 2.50 | 2.50 |" in filled
    assert "The best mean rank is that of *ours, light tails*, 1.00." in filled
    assert "| torchsort | **7 : 0, p = 0.031** |" in filled


def test_the_figure_is_made_from_the_records(tmp_path):
    path = tmp_path / "label_ranking.jsonl"
    for run in runs_of(spearman=[0.5, 0.6], torchsort=[0.4, 0.3], regression=[0.1, 0.2]):
        arguments = {**run["arguments"], "data_set": run["arguments"]["data_set"].replace(" ", "")}
        line = {"experiment": "label-ranking", "key": "".join(map(str, arguments.values()))}
        line |= {"seed": 0, "status": "finished", "arguments": arguments, "curve": {"step": []}}
        with path.open("a") as file:
            file.write(json.dumps(line | {"final": run["final"]}) + "\n")
    assert main(["--debug", "figures", str(path), "--out", str(tmp_path)]) == 0
    assert (tmp_path / "label-ranking-ranks.png").stat().st_size > 1000


@pytest.mark.parametrize("name", ["label_ranking"])
def test_the_published_page_says_what_its_records_say(name):
    found = records.read(ROOT / "results" / f"{name}.jsonl")
    for record in found:
        given = record["arguments"]
        shared = {key: given[key] for key in ("folds", "steps", "batch")}
        experiment = LabelRanking(**shared, hidden=given["hidden"] or 32)
        run = next(
            each
            for each in experiment.runs()
            if (each.data_set, each.model, each.method)
            == (given["data_set"], given["model"], given["method"])
        )
        assert record["key"] == experiment.key(run)
        assert len(record["commit"]) == 40
        assert record["command"].startswith("sparsewire label-ranking ")
    assert len({(r["key"], r["seed"]) for r in found}) == len(METHODS) * 2 * len(data.DATA_SETS)
    page = (ROOT / "docs" / "reproduction" / "label-ranking.md").read_text()
    assert page == fill_label_ranking(page, found)
