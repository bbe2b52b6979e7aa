"""The `tidegate` command: one file per sub-command; the only room that ends the process.

In: argv. Out: data on stdout, everything else on stderr, one `ExitCode`. A command module exposes one function
`command` (a Typer command that may return an `ExitCode`) and is imported only when its command runs, so that
the gateway never pays for the demo.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer

from tidegate import __version__
from tidegate.errors import ExitCode, TidegateError

COMMANDS: Final = {
    "init": "Write a commented tidegate.yaml.",
    "check": "Validate a tidegate.yaml.",
    "gateway": "Run the gateway.",
    "emulate": "Run an emulated engine: the twin's instance on the wall clock behind HTTP.",
    "load": "Drive open-loop traffic against an OpenAI-compatible endpoint.",
    "report": "Render one run, or compare two: table, JSON, one-file HTML.",
    "simulate": "Run a cluster and its traffic in the twin, on a virtual clock.",
    "calibrate": "Fit the twin's few constants to measured runs of an engine.",
    "lint": "Check launch scripts of vLLM and SGLang, and mend them.",
    "fit": "Whether a model fits a GPU: weights, KV tokens, headroom.",
    "doctor": "Symptom, cause and fix from logs, metric pages and configuration.",
    "freeze": "Write tidegate.lock: what runs, and the evidence for it.",
    "diff": "Compare two locks, or a lock with the defaults.",
    "tune": "Find the engine and gateway settings that keep the SLO.",
    "render": "Launch scripts, systemd units and scrape configuration from the lock.",
    "verify": "Compare what runs with the lock.",
    "demo": "Emulated cluster, gateway, a peak, default vs frozen, a report.",
}

TRACEBACK_VARIABLE: Final = "TIDEGATE_TRACEBACK"

# Typer carries its own click; its usage errors are reachable only through the public BadParameter.
_UsageProblem: Final[type[Exception]] = next(
    base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException"
)


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


def _program(wanted: str) -> typer.Typer:
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
            function = importlib.import_module(f"tidegate.cli.{name}").command
        root.command(name, short_help=summary, help=None if name == wanted else summary)(function)
    return root


def main() -> None:
    """Runs the command line and exits with an `ExitCode`; no traceback reaches a user."""
    sys.exit(run(sys.argv[1:]))


def run(argv: list[str]) -> int:
    """Runs one command line and returns its exit code."""
    wanted = next((word for word in argv if not word.startswith("-")), "")
    try:
        program = typer.main.get_command(_program(wanted))
        result = program.main(argv, prog_name="tidegate", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        return _say("interrupted", "", ExitCode.INTERRUPTED)
    except TidegateError as exc:
        return _say(exc.message, exc.hint, exc.exit_code)
    except _UsageProblem as exc:
        exc.show()  # type: ignore[attr-defined]
        return ExitCode.USAGE
    except BrokenPipeError:
        # Whoever read our output has enough; nothing of it is left to flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except Exception as exc:  # noqa: BLE001 - the last resort: no traceback reaches a user unasked
        return _defect(exc)
    return result if isinstance(result, int) else ExitCode.OK


def _defect(exc: Exception) -> ExitCode:
    if os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exception(exc)
    message = f"this is a bug in Tidegate: {type(exc).__name__}: {exc}"
    return _say(message, f"set {TRACEBACK_VARIABLE}=1 to see where, and report it with that", ExitCode.DEFECT)


def _say(message: str, hint: str, code: ExitCode) -> ExitCode:
    print(f"error: {message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
    return code
