"""The words that a command understands, read from its parser or from its dataclass."""

import argparse
import ast
import dataclasses
import difflib
import inspect
import textwrap
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from sparsewire_lab.errors import DEBUG_WORD, Parser

Kind = Literal["flag", "int", "float", "path", "text"]

_KINDS: dict[Any, Kind] = {int: "int", float: "float", Path: "path", str: "text"}
_READERS: dict[Kind, tuple[Callable[[str], Any], str]] = {
    "int": (int, "a whole number"),
    "float": (float, "a number"),
}
_LONGEST = 70  # characters of a help that stands beside what is completed


class Option(NamedTuple):
    """An option of a command."""

    name: str
    """With its dashes."""
    kind: Kind = "flag"
    """What its values are; a flag has none."""
    values: tuple[str, ...] = ()
    """The only ones that there are, if they can be told."""
    help: str = ""
    """What it is for, in short."""
    many: bool = False
    """Whether it takes any number of values."""
    may_be_none: bool = False
    """Whether the word None is a value too."""


@dataclass(frozen=True)
class Words:
    """What may follow a command: options, words of its own, and commands below it."""

    options: tuple[Option, ...] = ()
    values: tuple[str, ...] = ()
    paths: bool = False
    help: str = ""
    parts: "dict[str, Words]" = field(default_factory=dict)


def words_of_parser(parser: argparse.ArgumentParser) -> Words:
    """Return what a parser of argparse understands."""
    options: list[Option] = []
    values: list[str] = []
    parts: dict[str, Words] = {}
    paths = False
    known = parser.values if isinstance(parser, Parser) else {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            told = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, below in action.choices.items():
                parts[name] = dataclasses.replace(words_of_parser(below), help=told.get(name, ""))
            continue
        choices = tuple(map(str, action.choices or known.get(action.dest, ())))
        kind = "flag" if action.nargs == 0 else _KINDS.get(action.type, "text")
        if not action.option_strings:
            values += choices
            paths = paths or kind == "path"
        for name in action.option_strings:
            if name.startswith("--"):
                options.append(Option(name, kind, choices, _brief(action.help or "")))
    return Words(tuple(options), tuple(values), paths, parser.description or "", parts)


def words_of_fields(kind: type) -> Words | None:
    """Return what tyro understands of a dataclass; None if there is a field of an unusual type."""
    told = dict(_documented(kind))
    options = [Option("--help", help="show all arguments and exit")]
    hints = get_type_hints(kind, include_extras=True)
    for name in (one.name for one in dataclasses.fields(kind)):
        hint, dashed, said = hints[name], name.replace("_", "-"), _brief(told.get(name, ""))
        if hint is bool:
            options += [Option(f"--{dashed}", help=said), Option(f"--no-{dashed}", help=said)]
        elif (option := _option(f"--{dashed}", hint)) is not None:
            options.append(option._replace(help=said))
        else:
            return None
    options.append(Option(DEBUG_WORD, help="show where in the code an error happened"))
    return Words(tuple(options))


def check_words(known: Words, given: Sequence[str]) -> None:
    """Refuse the first word that a command cannot read, and say what it expects instead.

    Raises:
        ValueError: It names the option, what was expected and what came.
    """
    names = {option.name: option for option in known.options}
    rest = list(given)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        name = "--" + name[2:].replace("_", "-")
        if word in ("-h", "--help"):
            return
        if not word.startswith("--"):
            raise ValueError(f"expected an option, which begins with --; got {word!r}")
        if name not in names:
            raise ValueError(f"unknown option {name}{nearest(name, names)}")
        values = [value] if equals else []
        while not equals and rest and not _is_option(rest[0]):
            values.append(rest.pop(0))
        _check_values(names[name], values)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a question for a word that is not known: whether one like it was meant."""
    plain = {name.lstrip("-"): name for name in known}  # dashes alone make nothing alike
    found = difflib.get_close_matches(word.lstrip("-"), plain, n=1)
    return f"; did you mean {plain[found[0]]}?" if found else ""


def _check_values(option: Option, values: Sequence[str]) -> None:
    name, got = option.name, " ".join(values)
    if option.kind == "flag":
        if values:
            raise ValueError(f"{name} takes no value; got {got!r}")
        return
    read, expected = _READERS.get(option.kind, (str, "a path" if option.kind == "path" else ""))
    if option.values:
        expected = f"one of {', '.join(option.values)}"
    if not option.many and len(values) != 1:
        raise ValueError(f"{name} must be followed by {expected or 'a value'}; got {got or 'none'}")
    for value in values:
        if option.may_be_none and value == "None":
            continue
        try:
            if option.values and value not in option.values:
                raise ValueError
            read(value)
        except ValueError:
            raise ValueError(f"{name} must be {expected}; got {value!r}") from None


def _is_option(word: str) -> bool:
    """Whether a word begins an option: a negative number does not."""
    return word.startswith("-") and not word[1:2].isdigit() and word[1:2] not in ("", ".")


def _option(name: str, hint: Any) -> Option | None:
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    rest = [part for part in parts if part is not type(None)]
    may_be_none = len(rest) < len(parts)
    if len(rest) != 1:
        return None
    (one,) = rest
    if get_origin(one) is Literal:
        return Option(name, "text", tuple(map(str, get_args(one))), may_be_none=may_be_none)
    if one is bool:
        return Option(name, "text", ("True", "False"), may_be_none=may_be_none)
    many = get_origin(one) is tuple and get_args(one)[1:] == (...,)
    kind = _KINDS.get(get_args(one)[0] if many else one)
    return None if kind is None else Option(name, kind, (), "", many, may_be_none)


def _documented(kind: type) -> Iterable[tuple[str, str]]:
    """Yield the names of fields and the strings under them, the parents' first."""
    for one in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(one):
            continue
        try:
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(one))).body
        except (OSError, TypeError):  # its source is nowhere to be read
            continue
        assert isinstance(tree, ast.ClassDef)
        for line, below in zip(tree.body, tree.body[1:], strict=False):
            if (
                isinstance(line, ast.AnnAssign)
                and isinstance(line.target, ast.Name)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
            ):
                yield line.target.id, str(below.value.value)


def _brief(text: str) -> str:
    """Return the first sentence of a text, in one short line, without its default."""
    line = " ".join(text.replace("%%", "%").split())
    line = line.partition(". ")[0].partition(" (default")[0].rstrip(".")
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1].rstrip() + "…"
