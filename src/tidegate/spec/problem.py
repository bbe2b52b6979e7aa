"""What is wrong with a document: where (file, line, column, path) and one sentence.

In: findings of the YAML reader, the type walk and the rules. Out: one `SpecError` that carries them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from tidegate.errors import BadInputError

SHOWN_PROBLEMS: Final = 40


class Problem(Struct, frozen=True, kw_only=True):
    """One thing that is wrong. `line` and `column` count from 1; 0 means the file as a whole."""

    source: str
    line: int = 0
    column: int = 0
    path: str = ""
    text: str

    def __str__(self) -> str:
        place = f"{self.source}:{self.line}" if self.line else self.source
        return f"{place}: {self.path}: {self.text}" if self.path else f"{place}: {self.text}"


class SpecError(BadInputError):
    """A document that cannot be used. `problems` holds every one found, in the order of the file."""

    def __init__(self, problems: Sequence[Problem], *, hint: str = "") -> None:
        self.problems = tuple(sorted(problems, key=lambda problem: (problem.line, problem.column)))
        lines = [str(problem) for problem in self.problems[:SHOWN_PROBLEMS]]
        hidden = len(self.problems) - len(lines)
        if hidden:
            lines.append(f"{self.problems[0].source}: … and {hidden} more problems")
        super().__init__("\n".join(lines), hint=hint)


def child(path: str, key: str) -> str:
    """The path of `key` inside the mapping at `path`."""
    return f"{path}.{key}" if path else key


def item(path: str, index: int) -> str:
    """The path of entry `index` of the list at `path`."""
    return f"{path}[{index}]"


def shown(text: str) -> str:
    """`text` in quotes, cut to what fits a message."""
    return repr(text if len(text) <= 60 else text[:57] + "...")
