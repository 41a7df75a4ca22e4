"""Completion in shells: the scripts know what the parsers know, and the shells run them."""

import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest

from sparsewire_lab.bench.cases import GROUPS
from sparsewire_lab.cli.completion import all_words, bash, fish, words_of, zsh
from sparsewire_lab.cli.main import COMMANDS, main
from sparsewire_lab.cli.words import Option, Words, check_words, words_of_fields, words_of_parser
from sparsewire_lab.identity.experiment import Identity

EXPERIMENTS = ("identity", "attention", "sorting")
COMMANDS_BY_HAND = ("data", "figures", "bench", "completion")


@pytest.fixture(scope="module")
def known() -> dict[str, Words]:
    return all_words()


def names(words: Words) -> set[str]:
    return {option.name for option in words.options}


def complete(script: str, line: str, folder: Path) -> list[str]:
    """What bash would offer for the last word of a line."""
    words = shlex.split(line) + ([""] if line.endswith(" ") else [])
    asked = " ".join(map(shlex.quote, words))
    program = (
        f"{script}\nCOMP_WORDS=({asked}); COMP_CWORD={len(words) - 1}\n"
        'complete -p sparsewire > /dev/null && _sparsewire && printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        ["bash", "--norc", "-u", "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [word for word in done.stdout.splitlines() if word]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_has_the_options_of_its_help(
    name: str,
    known: dict[str, Words],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # so that no list of values is broken
    with pytest.raises(SystemExit):
        main([name, "--help"])
    said = capsys.readouterr().out
    listed = set(re.findall(r"^. (?:-h, )?(--[a-z-]+)", said, re.MULTILINE))
    listed |= set(re.findall(r"^. --[a-z-]+, (--no-[a-z-]+)", said, re.MULTILINE))
    assert names(known[name]) - {"--debug"} == listed
    for option in known[name].options:
        if option.values:
            offered = ",".join([*["None"][: option.may_be_none], *option.values])
            assert f"{option.name} {{{offered}}}" in said


@pytest.mark.parametrize("name", COMMANDS_BY_HAND)
def test_another_command_has_the_options_of_its_help(
    name: str, known: dict[str, Words], capsys: pytest.CaptureFixture[str]
) -> None:
    below = known[name].parts
    for words, place in [([name], known[name]), *(([name, p], w) for p, w in below.items())]:
        with pytest.raises(SystemExit):
            main([*words, "--help"])
        listed = re.findall(r"^  (?:-h, )?(--[a-z-]+)", capsys.readouterr().out, re.MULTILINE)
        assert names(place) == set(listed)
        assert {"--help", "--debug"} <= names(place)


def test_every_command_is_known_with_its_summary(known: dict[str, Words]) -> None:
    assert {name: words.help for name, words in known.items()} == {
        name: command.summary for name, command in COMMANDS.items()
    }


def test_fields_are_read_with_their_helps_and_kinds() -> None:
    found = {option.name: option for option in words_of_fields(Identity).options}  # pyright: ignore
    assert found["--size"] == Option(
        "--size", "int", (), "Size n of the vectors; the paper has 8, 16, 32 and 64"
    )
    assert found["--method"].help.startswith("sparse: the paper's layer; ")
    assert len(found["--method"].help) <= 70
    assert found["--lr"].may_be_none
    assert found["--lr"].kind == "float"
    assert found["--seeds"].many
    assert found["--out"].kind == "path"
    assert found["--target"].values == ("identity", "permutation", "band")
    assert found["--no-sweep"].kind == "flag"


def test_a_field_of_an_unusual_type_leaves_all_to_tyro() -> None:
    @dataclass
    class Odd:
        pairs: dict[str, int]

    @dataclass
    class Marked:
        size: Annotated[int, "something of tyro's"]

    assert words_of_fields(Odd) is None
    assert words_of_fields(Marked) is None


def test_a_module_without_parser_or_experiment_completes_nothing() -> None:
    assert words_of("sparsewire._version") == Words()


@pytest.mark.parametrize(
    "given",
    [
        ["--size", "8", "--lr", "-1e-3", "--seeds", "0", "1"],
        ["--size=8", "--evaluate_every", "None"],
        ["--seeds"],
        ["--help", "and", "whatever", "--follows"],
        [],
    ],
)
def test_words_that_can_be_read_pass(given: list[str]) -> None:
    known: Any = words_of_fields(Identity)
    assert check_words(known, given) is None


# Lines, and what is offered: all of it, or with an ellipsis some of it.
LINES: list[tuple[str, list[Any]]] = [
    ("sparsewire ", [*COMMANDS, "--help", "--version", "--debug"]),
    ("sparsewire id", ["identity"]),
    ("sparsewire identity --met", ["--method"]),
    ("sparsewire identity --method ", ["sparse", "reinforce", "rewire"]),
    ("sparsewire identity --size 8 --method re", ["reinforce", "rewire"]),
    ("sparsewire identity --method = re", ["reinforce", "rewire"]),
    ("sparsewire identity --method =", ["sparse", "reinforce", "rewire"]),
    ("sparsewire identity --size ", []),
    ("sparsewire identity --dry", ["--dry-run"]),
    ("sparsewire identity --no-t", ["--no-tensorboard"]),
    ("sparsewire identity --deb", ["--debug"]),
    ("sparsewire identity --out o", ["out here"]),
    ("sparsewire attention --head ", ["mlp", "conv"]),
    ("sparsewire sorting --preset p", ["paper"]),
    ("sparsewire data ", ["mnist", "show", "--help", "--debug"]),
    ("sparsewire data show --ca", ["--canvas"]),
    ("sparsewire data show --canvas ", ["60", "100", "400"]),
    ("sparsewire data mnist --ca", []),
    ("sparsewire bench s", [name for name in GROUPS if name.startswith("s")]),
    ("sparsewire bench spread --device ", ["cpu", "cuda"]),
    ("sparsewire figures r", ["records.jsonl"]),
    ("sparsewire figures --pa", ["--page"]),
    ("sparsewire completion ", ["bash", "zsh", "fish", "--help", "--debug"]),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "out here").mkdir()
    (tmp_path / "records.jsonl").touch()
    return tmp_path


def test_bash_completes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    for line, want in LINES:
        assert (line, sorted(complete(script, line, folder))) == (line, sorted(want))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_reads_the_script(shell: str, known: dict[str, Words], tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "script"
    script.write_text({"bash": bash, "zsh": zsh, "fish": fish}[shell](known))
    done = subprocess.run([shell, "-n", str(script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("make", [bash, zsh, fish])
def test_every_word_is_in_every_script(make: Any, known: dict[str, Words]) -> None:
    script = make(known)
    for name, words in known.items():
        assert name in script
        for option in words.options:
            assert (option.name if make is not fish else f" -l {option.name[2:]}") in script
            assert all(value in script for value in option.values)


def test_descriptions_cannot_end_their_quotes() -> None:
    odd = {"knit": Words((Option("--wool", "text", (), "the sheep's; $(rm) `x`"),), help="it's")}
    for make in (bash, zsh, fish):
        script = make(odd)
        body = "\n".join(line for line in script.splitlines() if "wool" in line or "knit" in line)
        assert "sheep's" not in script
        assert body.count("'") % 2 == 0


def test_parsers_of_argparse_lend_what_they_know() -> None:
    import argparse

    parser = argparse.ArgumentParser(description="Knits.")
    parser.add_argument("pattern", type=Path)
    parser.add_argument("-n", "--needles", type=int, choices=(2, 4), help="how many. 100%% wool")
    assert words_of_parser(parser) == Words(
        (
            Option("--help", "flag", (), "show this help message and exit"),
            Option("--needles", "int", ("2", "4"), "how many"),
        ),
        (),
        True,
        "Knits.",
    )
