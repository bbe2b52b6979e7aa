"""Quantities on the command line: a parser of `tidegate.units` as Typer wants it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer


def read(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """`parse`, with what it finds wrong as a usage error."""

    def parser(value: str) -> Any:
        try:
            return parse(value)
        except ValueError as exc:
            raise typer.BadParameter(str(exc)) from exc

    return parser
