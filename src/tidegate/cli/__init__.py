"""The `tidegate` command: one file per sub-command; the only room that ends the process.

In: argv. Out: data on stdout, everything else on stderr, one `ExitCode`. A command module exposes one function
`command` (a Typer command that may return an `ExitCode`) and is imported only when its command runs, so that
the gateway never pays for the demo. This file imports nothing slow: Ctrl-C is answered in words from the start.
"""

from __future__ import annotations

import errno
import io
import os
import sys
import traceback
from typing import Final

from tidegate.errors import ExitCode, TidegateError

COMMANDS: Final = {
    "init": "Write a commented tidegate.yaml.",
    "check": "Validate a tidegate.yaml.",
    "gateway": "Run the gateway.",
    "status": "How a running gateway is, once; --json for scripts.",
    "top": "Watch a running gateway in the terminal.",
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
    "render": "Launch scripts, systemd units, Prometheus and Grafana files from the lock.",
    "verify": "Compare what runs with the lock.",
    "upgrade": "What another engine version changes, and a new draft for it.",
    "demo": "Emulated cluster, gateway, a peak, default vs frozen, a report.",
}

TRACEBACK_VARIABLE: Final = "TIDEGATE_TRACEBACK"


def main() -> None:
    """Runs the command line and exits with an `ExitCode`; no traceback reaches a user."""
    for stream in (sys.stdout, sys.stderr):
        # Figures, and JSON above all, are UTF-8 everywhere: a locale that cannot write × must not end a command.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")
    sys.exit(run(sys.argv[1:]))


def run(argv: list[str]) -> int:
    """Runs one command line and returns its exit code."""
    try:
        from tidegate.cli.program import invoke

        code = invoke(argv)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return _say("interrupted", "", ExitCode.INTERRUPTED)
    except TidegateError as exc:
        return _say(exc.message, exc.hint, exc.exit_code)
    except BrokenPipeError:
        # Whoever read our output has enough.
        _forget_output()
        return ExitCode.OK
    except OSError as exc:
        if exc.errno not in (errno.ENOSPC, errno.EDQUOT):
            return _defect(exc)
        _forget_output()
        return _say(f"the output cannot be written: {exc.strerror}", "", ExitCode.UNAVAILABLE)
    except Exception as exc:  # noqa: BLE001 - the last resort: no traceback reaches a user unasked
        return _defect(exc)


def _forget_output() -> None:
    """Nothing of stdout is left to flush at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
