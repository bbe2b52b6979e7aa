"""The command line itself: Typer's root, with the wanted command imported and the others present by name only.

In: argv. Out: the command's `ExitCode`; `KeyboardInterrupt` and `TidegateError` go through to the caller.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer

from tidegate import __version__
from tidegate.cli import COMMANDS
from tidegate.errors import ExitCode

# Typer carries its own click; its usage errors are reachable only through the public BadParameter.
_UsageProblem: Final[type[Exception]] = next(
    base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException"
)


class _CtrlCError(Exception):
    """A `KeyboardInterrupt` on its way past Typer, which would end the command without a word."""


def invoke(argv: list[str]) -> int:
    """Runs one command line. Raises `KeyboardInterrupt` after Ctrl-C, and what the command raises."""
    wanted = next((word for word in argv if not word.startswith("-")), "")
    try:
        result = typer.main.get_command(program(wanted)).main(argv, prog_name="tidegate", standalone_mode=False)
    except (_CtrlCError, typer.Abort):
        raise KeyboardInterrupt from None
    except _UsageProblem as exc:
        exc.show()  # type: ignore[attr-defined]
        return ExitCode.USAGE
    return result if isinstance(result, int) else ExitCode.OK


def program(wanted: str) -> typer.Typer:
    """The command line with `wanted` imported and every other command present by name only."""
    root = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    root.callback()(_root_options)
    for name, summary in COMMANDS.items():
        function: Callable[..., Any] = _not_loaded
        if name == wanted:
            function = _past_typer(importlib.import_module(f"tidegate.cli.{name}").command)
        root.command(name, short_help=summary, help=None if name == wanted else summary)(function)
    return root


def _past_typer(command: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(command)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except KeyboardInterrupt:
            raise _CtrlCError from None

    return guarded


def _version(wanted: bool) -> None:
    if wanted:
        print(f"tidegate {__version__}")
        raise typer.Exit


def _root_options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True)] = False,
) -> None:
    """Keeps LLM inference clusters up, fast and within their SLA through the traffic peak."""


def _not_loaded() -> None:
    """Stands in for a command that only shows in the list."""
