"""What README and the documentation say is so: code runs, commands parse, every name is there."""

import argparse
import contextlib
import importlib
import inspect
import io
import pkgutil
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import sparsewire
import sparsewire.nn
from sparsewire_lab.cli.main import COMMANDS, main

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^( *)(```+|~~~+) *(.*)$", re.MULTILINE)
BLOCK = re.compile(r"^```python\n(.*?)^```(?:\n+```text\n(.*?)^```)?", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
INTERNAL = {"ConvPair", "Raw"}  # classes of layers that only layers use
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


def blocks(page: Path) -> list[tuple[str, str]]:
    """The code of a page, and what a text block right below says that it prints."""
    return BLOCK.findall(page.read_text())


def name_of(page: Path) -> str:
    return page.name


# Code


def test_there_is_code_to_run() -> None:
    with_code = {page.name for page in PAGES if blocks(page)}
    assert {"README.md", "index.md", "layers.md", "constraints.md", "tutorial.md"} <= with_code


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_block_escapes(page: Path) -> None:
    labels = [label for _, _, label in FENCE.findall(page.read_text())]
    assert set(labels[::2]) <= {"python", "sh", "text"}, "blocks of other kinds are not checked"
    assert set(labels[1::2]) <= {""}
    assert not any(indent for indent, _, _ in FENCE.findall(page.read_text()))


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=name_of)
def test_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"torch": torch, "__name__": "__page__"}
    for number, (block, said) in enumerate(blocks(page), start=1):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(block, f"{page.name}, block {number}", "exec"), names)
        if said:  # another machine has other last digits
            assert masked(printed.getvalue()) == masked(said), f"block {number} prints otherwise"


def masked(text: str) -> str:
    """Text without its numbers and its spaces."""
    return " ".join(NUMBER.sub("#", text).split())


# Commands


class Parsed(BaseException):
    """Raised in place of what a command would do: its words were understood. Nothing catches it."""


@pytest.fixture
def only_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every command read its words and do nothing."""
    import tyro

    parse, read = argparse.ArgumentParser.parse_args, tyro.cli

    def parse_only(self: argparse.ArgumentParser, *words: Any, **options: Any) -> None:
        parse(self, *words, **options)
        raise Parsed

    def read_only(*kinds: Any, **options: Any) -> None:
        experiment = read(*kinds, **options)
        experiment.check()  # refuses what contradicts itself
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_only)
    monkeypatch.setattr(tyro, "cli", read_only)


def understood(command: Callable[[], object]) -> bool:
    """Whether a command takes its words; asking for help is fine too."""
    try:
        command()
    except Parsed:
        return True
    except SystemExit as stopped:
        return stopped.code == 0
    return False


def check_line(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a command line could be run: that its command and its options are there."""
    words = shlex.split(line, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words.pop(0)
    first, rest = words[0], words[1:]
    if first == "sparsewire":
        if rest:  # alone it prints an overview
            assert rest[0] in COMMANDS or rest[0].startswith("--"), f"no such command: {line}"
            assert understood(lambda: main(rest)), f"refused: {line}"
    elif first == "torchrun":
        at = rest.index("-m")
        from torch.distributed.run import get_args_parser

        assert understood(lambda: get_args_parser().parse_args(rest[: at + 2])), f"refused: {line}"
        check_line(shlex.join(rest[at + 1 :]), monkeypatch)
    elif first == "python" and rest[0] == "-m":
        check_line(shlex.join(rest[1:]), monkeypatch)
    elif first == "python" and rest[0] != "train.py":  # which is the reader's
        script = ROOT / rest[0]
        assert script.is_file(), f"no such script: {line}"
        if re.search(r"\b(parse_args|run_parts)\(", script.read_text()):
            monkeypatch.syspath_prepend(str(script.parent))
            monkeypatch.setattr(sys, "argv", rest)
            assert understood(lambda: runpy.run_path(str(script), run_name="__main__")), (
                f"refused: {line}"
            )
        else:
            assert len(rest) == 1, f"takes no arguments: {line}"
    elif first == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        asked = [word for word in rest if "=" not in word]
        assert set(asked) <= set(targets), f"no such target: {line}"
    elif first == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        named = {e for found in re.findall(r"\[([a-z,]+)\]", line) for e in found.split(",")}
        assert named <= set(extras["optional-dependencies"]), f"no such extra: {line}"
    else:
        known = {"python", "tensorboard", "nvidia-cuda-mps-control", ".venv/bin/pre-commit"}
        assert first in known, f"nobody checks this command: {line}"


def shell_lines(page: Path) -> list[str]:
    """The lines of a page's shell blocks, and the commands in its text."""
    text = page.read_text()
    lines = [line for block in SHELL.findall(text) for line in block.splitlines() if line.strip()]
    starts = ("sparsewire ", "torchrun ", "python ", "make ", "pip install ")
    inline = INLINE.findall(FENCE.sub("", BLOCK.sub("", SHELL.sub("", text))))
    return [*lines, *(code for code in inline if code.startswith(starts) and "…" not in code)]


@pytest.mark.usefixtures("only_parse", "unchecked")
@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=name_of)
def test_commands_parse(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for line in shell_lines(page):
        check_line(line, monkeypatch)


@pytest.mark.usefixtures("only_parse", "unchecked")
def test_a_wrong_option_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = (
        "sparsewire identity --sise 8",
        "sparsewire identity --batch 0",
        "sparsewire weave",
        "sparsewire data show --data fashion",
        "torchrun --processes 4 -m sparsewire_lab identity",
        "torchrun --nproc-per-node 4 -m sparsewire_lab identity --sise 8",
        "python benchmarks/attention.py --only tea",
        "python benchmarks/none.py",
        "make tea",
        "pip install 'sparsewire[tea]'",
        "brew tea",
    )
    for line in wrong:
        with pytest.raises((AssertionError, ValueError)):
            check_line(line, monkeypatch)


@pytest.fixture(scope="module")
def helps() -> str:
    """What all commands say of their options."""
    asked = [*([name] for name in COMMANDS), ["data", "mnist"], ["data", "show"]]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        for words in asked:
            with contextlib.suppress(SystemExit):
                main([*words, "--help"])
    scripts = "".join(path.read_text() for path in (ROOT / "benchmarks").glob("*.py"))
    return said.getvalue() + scripts


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_options_that_text_mentions_are_there(page: Path, helps: str) -> None:
    for code in INLINE.findall(FENCE.sub("", page.read_text())):
        if option := re.match(r"--[a-z][a-z-]*", code):
            assert re.search(rf"{option[0]}(?![a-z-])", helps), f"no command has {option[0]}"


# Names


def documented() -> Iterator[tuple[str, object]]:
    """Everything that has an entry on the page of names: where it is, and what it is."""
    text = (ROOT / "docs" / "api.md").read_text()
    for entry in re.findall(r"^::: (.*(?:\n .*)*)", text, re.MULTILINE):
        path, *options = entry.splitlines()
        found = resolved(path)
        members = [line.strip("- ") for line in options if line.strip().startswith("- ")]
        yield path, found
        if inspect.ismodule(found) and not members:
            of_module = (name for name, x in vars(found).items() if whose(x) == found.__name__)
            members = [name for name in of_module if not name.startswith("_")]
        for name in members:
            yield f"{path}.{name}", getattr(found, name)


def resolved(path: str) -> object:
    module, _, name = path.rpartition(".")
    with contextlib.suppress(ImportError):
        return importlib.import_module(path)
    return getattr(resolved(module), name)


def whose(found: object) -> str | None:
    return getattr(found, "__module__", None)


def public() -> Iterator[tuple[str, object]]:
    for package in ("", ".ops", ".data", ".models", ".figures"):
        module = importlib.import_module(f"sparsewire{package}")
        for name in module.__all__:
            yield f"{module.__name__}.{name}", getattr(module, name)
    for found in pkgutil.iter_modules(sparsewire.nn.__path__, "sparsewire.nn."):
        module = importlib.import_module(found.name)
        for name, thing in vars(module).items():
            own = inspect.isclass(thing) and whose(thing) == module.__name__
            if own and not name.startswith("_") and name not in INTERNAL:
                yield f"{module.__name__}.{name}", thing


def test_every_public_name_is_on_the_page() -> None:
    paths, things = zip(*documented(), strict=True)
    seen = {id(thing) for thing in things if inspect.isclass(thing) or inspect.isroutine(thing)}
    missing = [path for path, thing in public() if id(thing) not in seen and path not in paths]
    assert not missing, f"docs/api.md lacks {missing}"


def test_no_name_is_on_the_page_twice() -> None:
    paths = [path for path, _ in documented()]
    assert len(paths) == len(set(paths))
