"""The shape of the code: which folder may import which, read from every import, lazy ones too."""

import ast
import sys
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LIBRARY, LAB = "sparsewire", "sparsewire_lab"
PACKAGES = {LIBRARY: ROOT / "src", LAB: ROOT / "lab" / "src"}
LONGEST = 400  # lines of a file

Sources = Mapping[str, str]


def read_sources() -> dict[str, str]:
    """Source text by dotted name; of a package, under the name of the package."""
    sources = {}
    for package, folder in PACKAGES.items():
        for file in (folder / package).rglob("*.py"):
            name = ".".join(file.relative_to(folder).with_suffix("").parts)
            sources[name.removesuffix(".__init__")] = file.read_text()
    return sources


def imports_of(tree: ast.Module, modules: Sources) -> Iterator[tuple[str, str]]:
    """The modules that a file imports anywhere, and the name that each import asks for, if any."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, ""
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield (whole, "") if whole in modules else (node.module, alias.name)


def is_package(name: str, modules: Sources) -> bool:
    return any(other.startswith(f"{name}.") for other in modules)


def is_facade(text: str) -> bool:
    """Whether a file holds a docstring, imports and `__all__`, and nothing else."""
    return all(
        isinstance(node, ast.Import | ast.ImportFrom)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).startswith("__"))
        for node in ast.parse(text).body
    )


def folder_of(name: str, modules: Sources) -> str:
    """The folder that a module belongs to; what lies in the root of a package is its own.

    A folder with a private name belongs to the folder around it. A package that only passes names
    on is not part of its folder: what is inside may import its siblings.
    """
    package = is_package(name, modules)
    if package and is_facade(modules[name]):
        return f"{name}.__init__"
    folder = name if package else name.rpartition(".")[0]
    parts = folder.split(".")
    private = [i for i, part in enumerate(parts) if part.startswith("_")]
    folder = ".".join(parts[: private[0]] if private else parts)
    return name if folder in PACKAGES else folder


def folder_graph(modules: Sources) -> dict[str, set[str]]:
    graph: dict[str, set[str]] = {}
    for name, text in modules.items():
        folder = folder_of(name, modules)
        for target, _ in imports_of(ast.parse(text), modules):
            if target in modules and folder_of(target, modules) != folder:
                graph.setdefault(folder, set()).add(folder_of(target, modules))
    return graph


def cycle_in(modules: Sources) -> list[str]:
    """The folders of one import cycle, if there is any."""
    try:
        tuple(TopologicalSorter(folder_graph(modules)).static_order())
    except CycleError as error:
        return error.args[1]
    return []


def strangers(modules: Sources) -> list[str]:
    """Imports of packages that the library does not require, and of the lab."""
    known = {LIBRARY, "torch", "numpy", *sys.stdlib_module_names}
    found = []
    for name, text in modules.items():
        if name.partition(".")[0] != LIBRARY:
            continue
        extra = {"triton"} if "._triton" in name else {"jaxtyping"} if "annot" in name else set()
        for target, _ in imports_of(ast.parse(text), modules):
            if target.partition(".")[0] not in known | extra:
                found.append(f"{name} imports {target}")
    return found


def trespasses(modules: Sources) -> list[str]:
    """Private names that are used outside of the folder they belong to."""
    found = []
    for name, text in modules.items():
        tree = ast.parse(text)
        used = [".".join(filter(None, pair)) for pair in imports_of(tree, modules)]
        aliases = {
            alias.asname or alias.name: f"{node.module}.{alias.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        used += [
            f"{aliases[node.value.id]}.{node.attr}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and aliases.get(node.value.id) in modules
        ]
        for path in used:
            parts = path.split(".")
            private = [i for i, p in enumerate(parts) if p.startswith("_") and p[:2] != "__"]
            if parts[0] not in PACKAGES or not private:
                continue
            owner = ".".join(parts[: private[0]])
            home = owner if is_package(owner, modules) else owner.rpartition(".")[0]
            if name != home and not name.startswith(f"{home}."):
                found.append(f"{name} uses {path}")
    return found


SOURCES = read_sources()


def test_the_walk_sees_the_whole_tree() -> None:
    assert {LIBRARY, LAB, "sparsewire.ops.spread", "sparsewire_lab.cli.main"} <= SOURCES.keys()
    assert len(folder_graph(SOURCES)) > 15


def test_folders_import_each_other_in_one_direction() -> None:
    assert cycle_in(SOURCES) == []


def test_the_library_imports_torch_and_numpy_only() -> None:
    assert strangers(SOURCES) == []


def test_private_names_stay_in_their_folders() -> None:
    assert trespasses(SOURCES) == []


def test_files_are_short() -> None:
    lines = {name: text.count("\n") for name, text in SOURCES.items()}
    assert {name: count for name, count in lines.items() if count > LONGEST} == {}


TREE = {
    "sparsewire": "from sparsewire.ops import f",
    "sparsewire.checks": "",
    "sparsewire.ops": "from sparsewire.ops.one import f",
    "sparsewire.ops.one": "import sparsewire.checks\ndef f(): pass\n_x = 1",
    "sparsewire.ops.one._a": "",
    "sparsewire.ops.two": "def g(): pass",
    "sparsewire.ops.two._b": "from sparsewire.ops import two",
    "sparsewire_lab": "",
    "sparsewire_lab.cli": "from sparsewire.ops import f\nx = 1",
}


def test_a_clean_tree_passes() -> None:
    assert (cycle_in(TREE), strangers(TREE), trespasses(TREE)) == ([], [], [])


@pytest.mark.parametrize(
    ("where", "line", "check"),
    [
        ("sparsewire.ops.one", "from sparsewire.ops import f", cycle_in),
        ("sparsewire.checks", "def f():\n    import sparsewire.ops.one", cycle_in),
        ("sparsewire.ops.two", "import sparsewire_lab.cli", strangers),
        ("sparsewire.ops.two", "def f():\n    import scipy", strangers),
        ("sparsewire.ops.two", "from sparsewire.ops.one import _x", trespasses),
        ("sparsewire.ops.two", "from sparsewire.ops.one import _a", trespasses),
        ("sparsewire.ops.two", "from sparsewire.ops import one\none._x", trespasses),
        ("sparsewire_lab.cli", "from sparsewire.ops.one._a import x", trespasses),
    ],
)
def test_a_fault_is_found(where: str, line: str, check: object) -> None:
    assert callable(check)
    assert check(TREE | {where: f"{TREE[where]}\n{line}"})
