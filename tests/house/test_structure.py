"""The house's shape: what every file of the package keeps to, whoever wrote it."""

from __future__ import annotations

import ast
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.cli import COMMANDS
from tidegate.errors import Outcome

LONGEST_FUNCTION = 60
LONGEST_FILE = 600
MEDIAN_FUNCTION = 10
SAYS_NOTHING = {"util", "utils", "helper", "helpers", "manager", "managers", "common", "misc"}

IMPORT_EVERYTHING = """
import importlib, os, pkgutil, signal, sys, threading
import tidegate

def state():
    paths = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    links = [os.readlink(path) for path in paths if os.path.lexists(path)]
    sockets = sum(link.startswith(("socket:", "anon_inode:[eventpoll]")) for link in links)
    handlers = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE)]
    return threading.active_count(), sockets, handlers

before = state()
for module in pkgutil.walk_packages(tidegate.__path__, "tidegate."):
    if module.name.endswith("__main__"):
        continue
    importlib.import_module(module.name)
    if state() != before:
        sys.exit(f"importing {module.name} has side effects: {before} became {state()}")
print(*sorted(name for name in sys.modules if name.startswith("tidegate")))
"""


@pytest.fixture(scope="module")
def sources(repo_root: Path) -> dict[Path, ast.Module]:
    """Every Python file of the package, parsed."""
    found = sorted((repo_root / "src" / "tidegate").rglob("*.py"))
    return {path: ast.parse(path.read_text("utf-8")) for path in found}


def functions(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Name and length in lines of every function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield node.name, node.end_lineno - node.lineno + 1


def test_functions_are_short(sources: dict[Path, ast.Module]) -> None:
    lengths = [(size, name, path) for path, tree in sources.items() for name, size in functions(tree)]
    too_long = [f"{path}: {name} has {size} lines" for size, name, path in lengths if size > LONGEST_FUNCTION]
    assert not too_long, "\n".join(too_long)
    assert statistics.median(size for size, _, _ in lengths) < MEDIAN_FUNCTION


def test_files_are_short(sources: dict[Path, ast.Module]) -> None:
    sizes = {path: len(path.read_text("utf-8").splitlines()) for path in sources}
    assert not {str(path): size for path, size in sizes.items() if size > LONGEST_FILE}


def test_names_say_something(sources: dict[Path, ast.Module]) -> None:
    words = {path: {*path.stem.split("_"), path.parent.name} for path in sources}
    assert not [str(path) for path, parts in words.items() if parts & SAYS_NOTHING]


def test_every_module_says_what_it_is_for(sources: dict[Path, ast.Module]) -> None:
    silent = [path for path, tree in sources.items() if not ast.get_docstring(tree)]
    assert not [str(path) for path in silent]


def test_nothing_is_left_for_later(sources: dict[Path, ast.Module]) -> None:
    marks = ("TO" + "DO", "FIX" + "ME", "X" * 3)
    left = [path for path in sources if any(mark in path.read_text("utf-8") for mark in marks)]
    assert not [str(path) for path in left]


def test_importing_starts_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_EVERYTHING], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "tidegate.policy.gate" in done.stdout.split()
    assert len(done.stdout.splitlines()) == 1, "importing prints"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_listed_command_explains_itself(name: str) -> None:
    words = [sys.executable, "-m", "tidegate", name, "--help"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert f"tidegate {name}" in done.stdout


def test_every_outcome_is_explained(repo_root: Path) -> None:
    text = (repo_root / "docs" / "concepts" / "request-life.md").read_text("utf-8")
    assert not [outcome.value for outcome in Outcome if f"`{outcome.value}`" not in text]


def test_shipped_tables_keep_their_attribution(repo_root: Path) -> None:
    tables = list((repo_root / "src").rglob("*.json.gz"))
    assert tables, "the twin ships step tables"
    notice = (repo_root / "NOTICE").read_text()
    assert "NVIDIA CORPORATION & AFFILIATES" in notice
    for folder in {table.parent for table in tables}:
        texts = "".join(path.read_text() for path in folder.iterdir() if path.suffix in {".md", ".txt"})
        assert "NVIDIA CORPORATION & AFFILIATES" in texts, f"{folder} lacks the tables' attribution"
        assert "Apache License" in texts, f"{folder} lacks the tables' licence text"
