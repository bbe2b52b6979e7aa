"""Asks an installed engine what it accepts: its own help, and its version.

Starting an engine's front end to print its help imports torch: seconds to a minute. The call is bounded in time and
size, and its whole process group is ended when it overruns.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Final

from tidegate.engines.helptext import parse_help, version_in
from tidegate.engines.optiontable import OptionSet, table
from tidegate.errors import UnavailableError

_HELP: Final = {
    "vllm": ["-m", "vllm.entrypoints.openai.api_server", "--help=all"],
    "sglang": ["-m", "sglang.launch_server", "--help"],
}
HELP_TIMEOUT_S: Final = 180.0
MOST_HELP_BYTES: Final = 8 * 2**20


def installed_options(engine: str, python: str = sys.executable) -> OptionSet:
    """What the engine installed beside `python` accepts. Raises UnavailableError when its help cannot be had."""
    version = version_in(
        _output([python, "-c", f"import importlib.metadata as m; print(m.version('{engine}'))"], engine)
    )
    text = _output([python, *_HELP[engine]], engine)
    return table(engine).from_help(parse_help(text), version)


def _output(argv: list[str], engine: str) -> str:
    hint = f"install {engine} beside that Python, or save its help to a file and give --help-text FILE"
    try:
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
    except OSError as exc:
        raise UnavailableError(f"{argv[0]} cannot be run: {exc.strerror}", hint=hint) from None
    try:
        out, err = child.communicate(timeout=HELP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        raise UnavailableError(f"{engine} did not print its help within {HELP_TIMEOUT_S:g} s", hint=hint) from None
    if child.returncode != 0:
        last = (err.decode(errors="replace").strip().splitlines() or ["it says nothing"])[-1]
        raise UnavailableError(f"{engine}'s help failed with exit code {child.returncode}: {last[:200]}", hint=hint)
    return out[:MOST_HELP_BYTES].decode(errors="replace")
