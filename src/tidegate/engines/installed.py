"""Asks an installed engine what it accepts: its own help, and its version.

Starting an engine's front end to print its help imports torch: seconds to a minute. The call is bounded in time and
size, and its whole process group is ended when it overruns.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from typing import Final

from tidegate.engines.helptext import parse_help, version_in
from tidegate.engines.optiontable import OptionSet, table
from tidegate.errors import BadInputError, UnavailableError

_HELP: Final = {
    "vllm": ["-m", "vllm.entrypoints.openai.api_server", "--help=all"],
    "sglang": ["-m", "sglang.launch_server", "--help"],
}
HELP_TIMEOUT_S: Final = 180.0
MOST_HELP_BYTES: Final = 8 * 2**20


def installed_options(engine: str, python: str = sys.executable, timeout_s: float = HELP_TIMEOUT_S) -> OptionSet:
    """What the engine installed beside `python` accepts. Raises UnavailableError when its help cannot be had."""
    ask_version = f"import importlib.metadata as m; print(m.version('{engine}'))"
    version = version_in(_output([python, "-c", ask_version], engine, timeout_s))
    text = _output([python, *_HELP[engine]], engine, timeout_s)
    try:
        return table(engine).from_help(parse_help(text), version)
    except BadInputError:
        first = (text.strip().splitlines() or ["nothing"])[0]
        raise UnavailableError(f"{engine} printed no help but: {first[:120]}", hint=_hint(engine)) from None


def _output(argv: list[str], engine: str, timeout_s: float) -> str:
    """What a program prints, bounded in time and size. Raises UnavailableError."""
    try:
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
    except OSError as exc:
        raise UnavailableError(f"{argv[0]} cannot be run: {exc.strerror}", hint=_hint(engine)) from None
    with child:
        try:
            out, err = _collect(child, engine, timeout_s)
        finally:
            # The group may outlive its first process: workers, or a help that hangs.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    if child.returncode != 0:
        last = (err.decode(errors="replace").strip().splitlines() or ["it says nothing"])[-1]
        sentence = f"{engine}'s help failed with exit code {child.returncode}: {last[:200]}"
        raise UnavailableError(sentence, hint=_hint(engine))
    return out.decode(errors="replace")


def _collect(child: subprocess.Popen[bytes], engine: str, timeout_s: float) -> tuple[bytes, bytes]:
    """Reads both pipes to their end, or raises when that takes too long or too much."""
    deadline_s = time.monotonic() + timeout_s
    held: dict[int, bytearray] = {}
    with selectors.DefaultSelector() as waiting:
        for pipe in (child.stdout, child.stderr):
            assert pipe is not None
            waiting.register(pipe, selectors.EVENT_READ)
            held[pipe.fileno()] = bytearray()
        order = list(held)
        while waiting.get_map():
            ready = waiting.select(max(0.0, deadline_s - time.monotonic()))
            if not ready:
                raise UnavailableError(f"{engine} did not print its help within {timeout_s:g} s", hint=_hint(engine))
            for key, _ in ready:
                data = os.read(key.fd, 65536)
                held[key.fd] += data
                if not data:
                    waiting.unregister(key.fileobj)
                if len(held[key.fd]) > MOST_HELP_BYTES:
                    raise UnavailableError(f"{engine} prints without end instead of its help", hint=_hint(engine))
        child.wait(max(1.0, deadline_s - time.monotonic()))
    return bytes(held[order[0]]), bytes(held[order[1]])


def _hint(engine: str) -> str:
    return f"install {engine} beside that Python, or save its help to a file and give --help-text FILE"
