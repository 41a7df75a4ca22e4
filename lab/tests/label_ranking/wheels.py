"""A small wheel with two data sets, in which the features decide the ranking."""

import hashlib
import zipfile
from pathlib import Path

import pytest
import torch

from sparsewire_lab.label_ranking import data

SIZES = {"iris": (60, 4, 3), "wine": (50, 3, 4)}


def table(name: str) -> str:
    """A CSV file: features, and the ranks of a linear function of them."""
    count, features, labels = SIZES[name]
    source = torch.Generator().manual_seed(len(name))
    x = torch.randn(count, features, generator=source)
    ranks = (x @ torch.randn(features, labels, generator=source)).argsort(-1).argsort(-1) + 1
    head = [f"A{i + 1}" for i in range(features)] + [f"L{i + 1}" for i in range(labels)]
    rows = [",".join(map(str, a + b)) for a, b in zip(x.tolist(), ranks.tolist(), strict=True)]
    return "\n".join([",".join(head), *rows]) + "\n"


def make_wheel(folder: Path, monkeypatch: pytest.MonkeyPatch, **tables: str) -> Path:
    """Write a wheel into a folder, and make its digest the right one."""
    path = folder / data.WHEEL
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in ({each: table(each) for each in SIZES} | tables).items():
            archive.writestr(data.MEMBER.format(name=name), text)
    monkeypatch.setattr(data, "DIGEST", hashlib.sha256(path.read_bytes()).hexdigest())
    return path
