"""Which modules of this installation are compiled (`make compile`) and which are plain Python.

`python -m tidegate.build_info` lists the compiled ones. Benchmarks and tests use it to say what they ran on.
"""

from __future__ import annotations

import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path


def compiled_modules() -> tuple[str, ...]:
    """Full names of the compiled modules, sorted; empty for the pure build."""
    package = Path(__file__).parent
    shared_objects = (path for suffix in EXTENSION_SUFFIXES for path in package.rglob("*" + suffix))
    names = {path.relative_to(package.parent).as_posix().split(".")[0] for path in shared_objects}
    return tuple(sorted(name.replace("/", ".") for name in names))


if __name__ == "__main__":
    modules = compiled_modules()
    sys.stdout.write("\n  ".join([f"{len(modules)} compiled modules", *modules]) + "\n")
