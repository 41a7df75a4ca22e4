"""README and documentation are true: code runs, commands parse, every public name is listed."""

import contextlib
import functools
import importlib
import inspect
import io
import pkgutil
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

import sparsewire.nn
from sparsewire_lab.cli.main import COMMANDS, load, main
from sparsewire_lab.cli.parse import parse
from sparsewire_lab.train.options import Experiment

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
OTHERS = [ROOT / "CONTRIBUTING.md", ROOT / "lab" / "README.md"]
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(r"^( *)(```+|~~~+) *(.*)$", re.MULTILINE)
BLOCK = re.compile(r"^```python\n(.*?)^```(?:\n+```text\n(.*?)^```)?", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
TERM = re.compile(r"^\*\*(.+)\*\*\{ #(.+) \}$", re.MULTILINE)
INTERNAL = {"ConvPair", "ConvTriple", "FusedPair", "LinearMap", "Places"}  # only layers use them
NAMED = re.compile(r"sparsewire [a-z]+")
FIGURE = re.compile(r"[a-z]+_figure|(animate|read)_[a-z]+")
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


def blocks(page: Path) -> list[tuple[str, str]]:
    """The code of a page, each with the text block right below it: what it prints."""
    return BLOCK.findall(page.read_text())


WITH_CODE = [page for page in PAGES if blocks(page)]
assert len(WITH_CODE) > 4, "code of README and documentation is not found"


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


# Code


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_block_escapes(page: Path) -> None:
    labels = [label for _, _, label in FENCE.findall(page.read_text())]
    assert set(labels[::2]) <= {"python", "sh", "text"}, "blocks of other kinds are not checked"
    assert set(labels[1::2]) <= {""}
    assert not any(indent for indent, _, _ in FENCE.findall(page.read_text()))


@pytest.mark.usefixtures("unchecked")  # as for a reader, without checks of every call
@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"torch": torch, "__name__": "__page__"}
    for number, (block, expected) in enumerate(blocks(page), start=1):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(block, f"{page.name}, block {number}", "exec"), names)
        if expected:  # the last digits differ between machines
            assert masked(printed.getvalue()) == masked(expected), f"output of block {number}"


def masked(text: str) -> str:
    """Text without its numbers and its spaces."""
    return " ".join(NUMBER.sub("#", text).split())


# Commands


@functools.cache  # pages repeat commands
def check_command(words: tuple[str, ...]) -> None:
    """Read the arguments of `sparsewire` and check them, without running the command."""
    if not words or words[0] in ("--help", "--version"):
        return
    if words[0] in ("--tyro-print-completion", "--tyro-write-completion"):
        assert words[1] in ("bash", "zsh", "fish"), f"no such shell: {words[1]}"
        return
    assert words[0] in COMMANDS, f"no such command: {words[0]}"
    rest = [word for word in words[1:] if word != "--debug"]
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):  # --help
        arguments = parse(load(COMMANDS[words[0]].arguments), rest, f"sparsewire {words[0]}")
        if hasattr(arguments, "check"):
            arguments.check()
        if isinstance(arguments, Experiment):
            assert [setting.resolved() for setting in arguments.settings()]


def check_line(line: str) -> None:
    """Check that a command line could be run: that its command and its options exist."""
    words = shlex.split(line, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words.pop(0)
    first, rest = words[0], words[1:]
    if first in ("sparsewire", "sparsewire_lab"):
        check_command(tuple(rest))
    elif first == "torchrun":
        at = rest.index("-m")
        from torch.distributed.run import get_args_parser

        with contextlib.redirect_stderr(io.StringIO()):
            get_args_parser().parse_args(rest[: at + 2])
        check_line(shlex.join(rest[at + 1 :]))
    elif first == "python" and rest[0] == "-m":
        check_line(shlex.join(rest[1:]))
    elif first == "python" and rest[0] != "train.py":  # which is the reader's
        assert (ROOT / rest[0]).is_file(), f"no such script: {line}"
        assert len(rest) == 1, f"takes no arguments: {line}"
    elif first == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        wanted = [word for word in rest if "=" not in word]
        assert set(wanted) <= set(targets), f"no such target: {line}"
    elif first == "pip":
        for word in rest[1:]:
            check_requirement(word)
    else:
        known = {"tensorboard", "nvidia-cuda-mps-control", ".venv/bin/pre-commit"}
        assert first in known, f"nobody checks this command: {line}"


def check_requirement(word: str) -> None:
    """Check that an argument of `pip install` is one of the two packages, with known extras."""
    name, _, extras = word.rstrip("]").partition("[")
    folder = {".": ".", "./lab": "lab", "sparsewire": ".", "sparsewire-lab": "lab"}[name]
    project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
    wanted = {extra for extra in extras.split(",") if extra}
    assert wanted <= set(project["optional-dependencies"]), f"no such extra: {word}"


def shell_lines(page: Path) -> list[str]:
    """The lines of a page's shell blocks, and the commands in its text."""
    text = page.read_text()
    lines = [line for block in SHELL.findall(text) for line in block.splitlines() if line.strip()]
    starts = ("sparsewire ", "torchrun ", "python ", "make ", "pip install ")
    inline = INLINE.findall(FENCE.sub("", BLOCK.sub("", SHELL.sub("", text))))
    inline = [code for code in inline if code.startswith(starts) and "…" not in code]
    # A command that is only named needs no arguments.
    return [*lines, *(f"{code} --help" if NAMED.fullmatch(code) else code for code in inline)]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=name_of)
def test_commands_parse(page: Path) -> None:
    for line in shell_lines(page):
        check_line(line)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "line",
    [
        "sparsewire identity --sise 8",
        "sparsewire identity --batch 0",
        "sparsewire weave",
        "torchrun --processes 4 -m sparsewire_lab identity",
        "torchrun --nproc-per-node 4 -m sparsewire_lab identity --sise 8",
        "python benchmarks/none.py",
        "make tea",
        "pip install 'sparsewire[tea]'",
        "brew tea",
    ],
)
def test_a_wrong_line_is_found(line: str) -> None:
    with pytest.raises((AssertionError, ValueError, KeyError, SystemExit)):
        check_line(line)


@pytest.fixture(scope="module")
def helps() -> str:
    """The help of all commands."""
    asked = [*([name] for name in COMMANDS), ["data", "mnist"], ["data", "show"], []]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        for words in asked:
            with contextlib.suppress(SystemExit):
                main([*words, "--help"])
    return printed.getvalue()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_options_in_the_text_exist(page: Path, helps: str) -> None:
    for code in INLINE.findall(FENCE.sub("", page.read_text())):
        if option := re.match(r"--[a-z][a-z-]*", code):
            assert re.search(rf"{option[0]}(?![a-z-])", helps), f"no command has {option[0]}"


# Names


def documented() -> Iterator[tuple[str, object]]:
    """Everything that has an entry on the pages of names: its path, and what it is."""
    text = "".join((DOCS / page).read_text() for page in ("api.md", "api-lab.md"))
    for entry in re.findall(r"^::: (.*(?:\n .*)*)", text, re.MULTILINE):
        path, *options = entry.splitlines()
        item = resolved(path)
        members = [line.strip("- ") for line in options if line.strip().startswith("- ")]
        yield path, item
        if inspect.ismodule(item) and not members:
            members = [name for name in own(item) if not name.startswith("_")]
        for name in members:
            yield f"{path}.{name}", getattr(item, name)


def resolved(path: str) -> object:
    module, _, name = path.rpartition(".")
    with contextlib.suppress(ImportError):
        return importlib.import_module(path)
    return getattr(resolved(module), name)


def own(module: ModuleType) -> list[str]:
    """The names of what a module defines."""
    items = vars(module).items()
    return [name for name, item in items if getattr(item, "__module__", "") == module.__name__]


def public() -> Iterator[tuple[str, object]]:
    """Every public name: what packages list, the classes of layers and models, the figures."""
    listing = ("sparsewire", "sparsewire.ops", "sparsewire.sorting", "sparsewire_lab.data")
    for module in map(importlib.import_module, listing):
        for name in module.__all__:
            yield f"{module.__name__}.{name}", getattr(module, name)
    for module in modules_in(sparsewire.nn):
        yield from classes_in(module, object)
    for folder in ("identity", "attention", "sorting"):
        for module in modules_in(importlib.import_module(f"sparsewire_lab.{folder}")):
            yield from classes_in(module, torch.nn.Module)
            for name in filter(FIGURE.fullmatch, own(module)):
                yield f"{module.__name__}.{name}", getattr(module, name)


def modules_in(package: ModuleType) -> Iterator[ModuleType]:
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        yield importlib.import_module(found.name)


def classes_in(module: ModuleType, base: type) -> Iterator[tuple[str, object]]:
    for name in own(module):
        item = getattr(module, name)
        hidden = name.startswith("_") or name in INTERNAL
        if inspect.isclass(item) and issubclass(item, base) and not hidden:
            yield f"{module.__name__}.{name}", item


def test_every_public_name_is_documented() -> None:
    paths, items = zip(*documented(), strict=True)
    seen = {id(item) for item in items if inspect.isclass(item) or inspect.isroutine(item)}
    missing = [path for path, item in public() if id(item) not in seen and path not in paths]
    assert not missing, f"docs/api.md and docs/api-lab.md lack {missing}"


def test_no_name_is_documented_twice() -> None:
    paths = [path for path, _ in documented()]
    assert len(paths) == len(set(paths))


def test_terms_are_in_order() -> None:
    terms = TERM.findall((DOCS / "glossary.md").read_text())
    assert len(terms) > 40
    assert [term for term, _ in terms] == sorted((term for term, _ in terms), key=str.lower)
    assert all(anchor == term.lower().replace(" ", "-") for term, anchor in terms)
