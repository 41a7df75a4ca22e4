"""What our soft sorts can do, each cell of the table; and that a check can say no."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from sparsewire_lab.bench.cases import DFTOPK, HARD, LEAGUE, OURS, PEERS, WITHOUT_TIME
from sparsewire_lab.bench.page import parse_abilities
from sparsewire_lab.bench.peers import absent
from sparsewire_lab.bench.properties import ANSWERS, PROPERTIES, check
from sparsewire_lab.bench.record import read

RECORD = Path(__file__).resolve().parents[3] / "results" / "bench.csv"
Found = Mapping[str, Mapping[str, str]]


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What the command finds, by engine; here, annotations are checked, which does not compile."""
    folder = tmp_path_factory.mktemp("properties")
    words = ["bench", "properties", "--json", "--device", "cpu", "--out", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "sparsewire_lab", *words],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {row["engine"]: parse_abilities(row) for row in rows if row["status"] == "ok"}


def noes(answers: Mapping[str, str]) -> set[str]:
    return {name for name, answer in answers.items() if answer == "no"}


@pytest.mark.parametrize("name", PROPERTIES)
def test_ours_has_every_property(tried: Found, name: str) -> None:
    assert tried[OURS][name] == "yes"


@pytest.mark.parametrize(
    ("engine", "lacks"),
    [
        (HARD, {"continuous", "ties have equal ranks", "mask for padding"}),
        ("softsort", {"doubly stochastic", "mask for padding"}),
        ("neuralsort", {"doubly stochastic", "mask for padding", "float16"}),
        (DFTOPK, {"mask for padding"}),
    ],
)
def test_others_lack_what_they_lack(tried: Found, engine: str, lacks: set[str]) -> None:
    assert noes(tried[engine]) == lacks


def test_what_does_not_apply_is_neither() -> None:
    assert PROPERTIES["in order"](DFTOPK) is None
    assert PROPERTIES["no compiler at install"]("softsort") is None


def test_a_call_that_fails_does_not_have_the_property(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROPERTIES, "in order", lambda engine: 1 / 0 > 0)
    assert check(DFTOPK)["in order"] is False


@pytest.mark.skipif(not RECORD.exists(), reason="needs a clone")
def test_the_record_says_what_the_checks_say(tried: Found) -> None:
    rows = [row for row in read(RECORD) if row["case"] == WITHOUT_TIME]
    newest = {row["engine"]: parse_abilities(row) for row in rows if row["status"] == "ok"}
    engines = {OURS, *(engine for case in LEAGUE for engine in PEERS[case])}
    assert newest.keys() == engines
    assert {answer for row in newest.values() for answer in row.values()} == {*ANSWERS.values()}
    assert tried.keys() == engines - {*absent()}
    for engine in tried:
        assert newest[engine] == tried[engine]
