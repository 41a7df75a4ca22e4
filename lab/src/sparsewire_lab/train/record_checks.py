"""The validation of records: what a line must be before tables, figures or a run trust it."""

import math
import re
from collections.abc import Callable, Iterable
from pathlib import PurePosixPath
from typing import Any

REQUIRED = ("experiment", "key", "seed", "status", "arguments", "curve", "final")
STATUSES = ("finished", "diverged")

# Arguments that name files or folders; all other strings are single words.
_PATHS = ("out", "mnist")
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_LARGEST = 2**63

# What tables and figures read of the arguments of known experiments.
_COUNTS = {
    "identity": ("size", "steps"),
    "attention": ("glimpses", "size", "canvas", "reduce", "steps", "batch"),
    "sorting": ("size", "places", "steps", "batch"),
}
_WORDS = {
    "identity": ("method", "target", "values"),
    "attention": ("model", "preset", "data", "split", "head"),
    "sorting": ("method", "loss", "preset", "data", "split"),
}
EXPERIMENTS = tuple(_COUNTS)


def problem_of(record: dict[str, Any]) -> str | None:
    """Return what is wrong with a record; None if it is valid.

    Examples:
        >>> problem_of({"experiment": "identity", "key": ["a"]})
        'it lacks seed, status, arguments, curve, final'
    """
    if missing := [name for name in REQUIRED if name not in record]:
        return f"it lacks {', '.join(missing)}"
    for name, (valid, expected) in _FIELDS.items():
        if name in record and not valid(record[name]):
            return f"{name} must be {expected}; got {_short(record[name])}"
    return _argument_problem(record) or _curve_problem(record)


def has_errors(record: dict[str, Any]) -> bool:
    """Return whether the curve of a valid record has a finite error, so that it can be drawn."""
    errors = record["curve"].get("error", ())
    return any(error is not None and math.isfinite(error) for error in errors)


def _argument_problem(record: dict[str, Any]) -> str | None:
    experiment, arguments = record["experiment"], record["arguments"]
    for name, value in arguments.items():
        may_be_list = name == "seeds" or experiment not in EXPERIMENTS
        for part in value if may_be_list and isinstance(value, list) else [value]:
            plain = _is_word(part) or (name in _PATHS and _is_text(part))
            if not (plain or isinstance(part, bool) or _is_number_or_none(part)):
                return f"argument {name} must be a number or a plain word; got {_short(value)}"
    for name, valid, expected in (
        *((name, _is_count, "whole number") for name in _COUNTS.get(experiment, ())),
        *((name, _is_word, "plain word") for name in _WORDS.get(experiment, ())),
        ("lr", _is_number_or_none, "number"),
    ):
        if not valid(arguments.get(name)):
            return f"argument {name} must be a {expected}; got {_short(arguments.get(name))}"
    return None


def _curve_problem(record: dict[str, Any]) -> str | None:
    curve = record["curve"]
    wanted = {"step", "error"} if record["experiment"] in EXPERIMENTS else {"step"}
    if missing := sorted(wanted - curve.keys()):
        return f"curve must have step and error; it lacks {', '.join(missing)}"
    if not all(isinstance(values, list) for values in curve.values()):
        return "curve must hold lists"
    if len(lengths := {len(values) for values in curve.values()}) > 1:
        return f"curve must hold lists of one length; got {sorted(lengths)}"
    if not all(map(_is_count, curve["step"])):
        return "curve must have whole numbers as steps"
    if not all(map(_is_number_or_none, (v for values in curve.values() for v in values))):
        return "curve must hold numbers"
    return None


def _is_text(value: object) -> bool:
    """Whether a value is a string without lone surrogates, which cannot be printed."""
    return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)


def _is_word(value: object) -> bool:
    """Whether a value is a plain word: it may be part of the name of a file."""
    return isinstance(value, str) and _WORD.fullmatch(value) is not None


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _LARGEST


def _is_number_or_none(value: object) -> bool:
    if type(value) is int:
        return abs(value) < _LARGEST
    return value is None or isinstance(value, float)


def _is_file(value: object) -> bool:
    """Whether a value is a relative path that does not leave the folder it is relative to."""
    if not _is_text(value):
        return False
    path = PurePosixPath(text := str(value))
    return not (path.is_absolute() or ".." in path.parts or any(c in text for c in "\\:\0"))


def _is_table(value: object, valid: Callable[[Any], bool] = lambda _: True) -> bool:
    return isinstance(value, dict) and all(k.isidentifier() and valid(v) for k, v in value.items())


def _or_none(valid: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or valid(value)


def _short(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _fields(names: Iterable[str], valid: Callable[[Any], bool], expected: str) -> dict[str, Any]:
    return dict.fromkeys(names, (valid, expected))


_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **_fields(("experiment", "key"), _is_word, "a plain word"),
    "seed": (lambda value: type(value) is int and abs(value) < _LARGEST, "a whole number"),
    "status": (lambda value: value in STATUSES, f"one of {', '.join(STATUSES)}"),
    "arguments": (_is_table, "a table of arguments"),
    "curve": (_is_table, "a table of lists"),
    "final": (_or_none(lambda value: _is_table(value, _is_number_or_none)), "a table of numbers"),
    "versions": (_or_none(lambda value: _is_table(value, _is_text)), "a table of words"),
    **_fields(
        ("label", "command", "problem", "run", "date", "commit", "device"),
        _or_none(_is_text),
        "text",
    ),
    **_fields(("processes", "at_once", "steps"), _or_none(_is_count), "a whole number"),
    **_fields(("seconds", "step_ms", "peak_memory", "best"), _is_number_or_none, "a number"),
    "wiring": (_or_none(_is_file), "the name of a file in the folder of the records"),
}
