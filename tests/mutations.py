"""Small faults planted in the library: how many of them does the suite notice?

    python tests/mutations.py sample --count 160 --other OLD_TREE > mutations.json
    python tests/mutations.py run mutations.json --tree . > here.jsonl
    python tests/mutations.py run mutations.json --tree OLD_TREE --missed-by here.jsonl

`sample` chooses lines of the library at random, from a seed, and one small change in each: another
comparison, operator, constant or truth value. With `--other` it takes only lines that another tree
has too, so that two suites can be compared. `run` plants each in a copy of the tree and runs the
tests of the folder around it, those of the changed file first, until one fails. With `--missed-by`
only the faults that another run missed are planted: when this suite misses them too, it notices no
more than the other. Kernels are left out: they need a GPU.
"""

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

SWAPS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"),
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "+"), ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "*"), ast.And: ("and", "or"), ast.Or: ("or", "and"),
}  # fmt: skip
# The tests of each folder of the library, in this tree and in the one before it was rearranged.
TESTS = {
    "ops": ("tests/ops", "tests/nn", "tests/layers"),
    "sorting": ("tests/sorting", "tests/ops", "tests/layers/test_sort.py"),
    "nn": ("tests/nn", "tests/layers", "tests/rewire"),
    "": ("tests/rewire", "tests/test_cuda_graph.py", "tests/test_capture.py", "tests/ops"),
}
SECONDS = 600  # after which a run counts as noticed: the fault makes it hang


def changes(line: str, nodes: list[ast.AST]) -> Iterator[str]:
    """The line with one small change, for every change that its nodes allow."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, bool | int):
            new = not node.value if isinstance(node.value, bool) else node.value + 1
            yield f"{line[: node.col_offset]}{new}{line[node.end_col_offset :]}"
        pairs: list[tuple[ast.AST, ast.AST, ast.AST]] = []
        if isinstance(node, ast.BinOp):
            pairs = [(node.left, node.op, node.right)]
        elif isinstance(node, ast.Compare):
            pairs = [(node.left, node.ops[0], node.comparators[0])]
        elif isinstance(node, ast.BoolOp):
            pairs = [(node.values[0], node.op, node.values[1])]
        for left, operator, right in pairs:
            if type(operator) in SWAPS:
                old, new = SWAPS[type(operator)]
                start, end = left.end_col_offset, right.col_offset  # type: ignore[attr-defined]
                if re.fullmatch(rf"[) ]*{re.escape(old)}[( ]*", line[start:end]):
                    between = line[start:end].replace(old, new)
                    yield line[:start] + between + line[end:]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield line[: node.col_offset] + line[node.operand.col_offset :]


def mutations_of(file: Path) -> list[tuple[str, str]]:
    """Lines of a file, as they are and with a change, none from an annotation or a docstring."""
    lines = file.read_text().split("\n")
    once = Counter(line.strip() for line in lines)
    by_line: dict[int, list[ast.AST]] = {}
    tree = ast.parse("\n".join(lines))
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if part is not None
        for inner in ast.walk(part)
    }
    for node in ast.walk(tree):
        start, end = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
        if start and start == end and id(node) not in skipped and lines[start - 1].isascii():
            by_line.setdefault(start, []).append(node)
    found = []
    for number, nodes in sorted(by_line.items()):
        line = lines[number - 1]
        if once[line.strip()] == 1:
            found += [(line.strip(), new.strip()) for new in changes(line, nodes)]
    return found


def sample(tree: Path, other: Path | None, count: int, seed: int) -> list[dict[str, str]]:
    files = [f for f in sorted((tree / "src/sparsewire").rglob("*.py")) if "_triton" not in str(f)]
    elsewhere: dict[str, list[str]] = {}
    if other is not None:
        for file in sorted((other / "src/sparsewire").rglob("*.py")):
            lines = Counter(line.strip() for line in file.read_text().split("\n"))
            for line in (line for line, times in lines.items() if times == 1):
                elsewhere.setdefault(line, []).append(str(file.relative_to(other)))
    every = []
    for file in files:
        for line, new in mutations_of(file):
            there = elsewhere.get(line, [])
            if other is None or len(there) == 1:
                name = str(file.relative_to(tree))
                every.append({"file": name, "other": (there or [""])[0], "line": line, "new": new})
    return random.Random(seed).sample(every, count)


def tests_for(file: str, tree: Path) -> list[str]:
    """The test files for a source file: the one of its own name, of its folder's, then others."""
    *folders, name = file.removeprefix("src/sparsewire/").removesuffix(".py").split("/")
    first = [f"test_{part.strip('_')}.py" for part in (name, *reversed(folders))]
    parts = TESTS.get(folders[0] if folders else "", TESTS[""])
    files = [path for part in parts for path in test_files(tree / part)]
    files.sort(key=lambda path: first.index(path.name) if path.name in first else len(first))
    return [str(path.relative_to(tree)) for path in files]


def test_files(part: Path) -> list[Path]:
    return sorted(part.glob("test_*.py")) if part.is_dir() else [part] * part.exists()


def run_tests(home: Path, names: list[str], deselected: list[str], first: bool) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=no"]
    command += [*(["-x"] if first else []), *(f"--deselect={name}" for name in deselected), *names]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    environment |= {"PYTHONPATH": os.pathsep.join([str(home / "src"), str(home / "lab/src"),
                    os.environ.get("PYTHONPATH", "")]), "PYTHONDONTWRITEBYTECODE": "1"}  # fmt: skip
    try:
        done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True,
                              timeout=SECONDS * (1 if first else 4), check=False)  # fmt: skip
    except subprocess.TimeoutExpired:
        return 1, "timeout"
    return done.returncode, done.stdout


def run(mutations: list[dict[str, str]], tree: Path, jobs: int) -> list[dict[str, Any]]:
    """Plant each mutation in a copy of the tree, and run the tests that pass without it."""
    homes: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        for number in range(jobs):
            home = Path(folder) / str(number)
            hidden = shutil.ignore_patterns(".git", ".venv", "__pycache__", "results", "docs", ".*")
            shutil.copytree(tree, home, ignore=hidden)
            homes.put(home)

        def with_home(names: list[str], deselected: list[str], first: bool, plant: Any) -> Any:
            home = homes.get()
            undo = plant(home)
            try:
                return run_tests(home, names, deselected, first)
            finally:
                undo()
                homes.put(home)

        parts = {tree / part for parts in TESTS.values() for part in parts}
        files = sorted({str(f.relative_to(tree)) for part in parts for f in test_files(part)})
        before = pool.map(lambda f: with_home([f], [], False, lambda _: lambda: None), files)
        failing = [
            line.split()[1]
            for _, out in before
            for line in out.splitlines()
            if line.startswith(("FAILED", "ERROR"))
        ]
        print(f"failing without a fault, left out: {failing}", file=sys.stderr, flush=True)

        def judge(mutation: dict[str, str]) -> dict[str, Any]:
            here = next(m for m in (mutation["file"], mutation["other"]) if (tree / m).is_file())
            if mutation["line"] not in (tree / here).read_text():
                here = mutation["other"]

            def plant(home: Path) -> Any:
                file = home / here
                text = file.read_text()
                lines = text.split("\n")
                (at,) = [i for i, line in enumerate(lines) if line.strip() == mutation["line"]]
                lines[at] = lines[at].replace(mutation["line"], mutation["new"])
                file.write_text("\n".join(lines))
                return lambda: file.write_text(text)

            status, _ = with_home(tests_for(mutation["file"], tree), failing, True, plant)
            result = mutation | {"noticed": bool(status)}
            print(json.dumps(result), flush=True)
            return result

        return list(pool.map(judge, mutations))


def main() -> None:
    parser = argparse.ArgumentParser(description="Plant small faults in the library.")
    commands = parser.add_subparsers(dest="command", required=True)
    make = commands.add_parser("sample", help="print mutations as JSON")
    make.add_argument("--count", type=int, default=160)
    make.add_argument("--seed", type=int, default=0)
    make.add_argument("--other", type=Path, help="a tree whose files must have the same lines")
    judge = commands.add_parser("run", help="plant them, and print a line of JSON for each")
    judge.add_argument("mutations", type=Path)
    judge.add_argument("--jobs", type=int, default=2)
    judge.add_argument("--missed-by", type=Path, help="what another run printed")
    for command in (make, judge):
        command.add_argument("--tree", type=Path, default=Path())
    given = parser.parse_args()
    if given.command == "sample":
        print(json.dumps(sample(given.tree, given.other, given.count, given.seed), indent=1))
        return
    mutations = json.loads(given.mutations.read_text())
    if given.missed_by is not None:
        other = [json.loads(line) for line in given.missed_by.read_text().splitlines()]
        missed = [(m["file"], m["new"]) for m in other if not m["noticed"]]
        mutations = [m for m in mutations if (m["file"], m["new"]) in missed]
    results = run(mutations, given.tree, given.jobs)
    noticed = sum(result["noticed"] for result in results)
    print(f"\n{noticed} of {len(results)} noticed", file=sys.stderr)


if __name__ == "__main__":
    main()
