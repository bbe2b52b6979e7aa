"""Builds the package; with TIDEGATE_COMPILE=1 the pure rooms and the data path are compiled by mypyc.

Everything else is in pyproject.toml. What gets compiled follows a rule, not a list: every module of `policy`,
`wire`, `twin` and `transport` (and `ALSO`) except packages' `__init__`, `twin/emulate` (it does I/O) and modules that
define a `msgspec.Struct` (a metaclass mypyc cannot make native).
"""

from __future__ import annotations

import ast
import os
from pathlib import Path

from setuptools import Extension, setup

SOURCE = Path("src/tidegate")
COMPILED_ROOMS = ("policy", "wire", "twin", "transport")
INTERPRETED_PACKAGES = ("emulate",)
ALSO = (
    "traffic/histogram.py",
    "gateway/endpoints.py",
    "gateway/flight.py",
    "gateway/shell.py",
    "gateway/stream.py",
    "gateway/tenants.py",
    "observe/buckets.py",
    "observe/meters.py",
)
"""What the twin calls once a step, and what the gateway calls once a request or chunk."""


def defines_struct(source: Path) -> bool:
    """Whether a class in the file derives from msgspec's Struct, by either spelling."""
    classes = [node for node in ast.walk(ast.parse(source.read_text("utf-8"))) if isinstance(node, ast.ClassDef)]
    bases = [ast.unparse(base) for node in classes for base in node.bases]
    return any(base in ("Struct", "msgspec.Struct") for base in bases)


def compilable() -> list[str]:
    """Paths of the modules to compile, sorted."""
    files = [path for room in COMPILED_ROOMS for path in (SOURCE / room).rglob("*.py")]
    files += [SOURCE / name for name in ALSO]
    return sorted(
        str(path)
        for path in files
        if path.name != "__init__.py"
        and not set(path.relative_to(SOURCE).parts) & set(INTERPRETED_PACKAGES)
        and not defines_struct(path)
    )


def extensions() -> list[Extension]:
    """The mypyc extensions, or none for the pure build."""
    if os.environ.get("TIDEGATE_COMPILE") != "1":
        return []
    from mypyc.build import mypycify

    return mypycify(compilable(), opt_level=os.environ.get("TIDEGATE_COMPILE_OPT", "2"))


if __name__ == "__main__":
    setup(ext_modules=extensions())
