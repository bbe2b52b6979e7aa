"""Runs llama.cpp's own HTTP server, with a tiny random model, until SIGTERM or SIGINT.

    python -m tidegate.engines.llamacpp_server --port 8001 [--model FILE.gguf] [--slots 8] [--context-tokens 16384]

Needs the extra `engine-llamacpp`. One compute thread unless told otherwise: on a shared machine llama.cpp's
default takes every core and stalls the gateway under test. Importing this module starts nothing.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from tidegate.errors import BadInputError, ExitCode, TidegateError, UnavailableError

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_QUIET: Final = 1
"""llama.cpp's own verbosity: errors only."""


def command(
    port: int, *, model_name: str = "tiny", slots: int = 8, context_tokens: int = 16_384, host: str = "127.0.0.1"
) -> list[str]:
    """The command line that starts a server in a process of its own; ready when `/health` answers 200."""
    options = {"--host": host, "--port": port, "--model-name": model_name, "--slots": slots}
    options["--context-tokens"] = context_tokens
    words = [str(word) for option in options.items() for word in option]
    return [sys.executable, "-m", "tidegate.engines.llamacpp_server", *words]


def main(argv: list[str]) -> ExitCode:
    """Parses, serves until told to stop, and says in one sentence why it cannot.

    Stop signals are blocked before anything is made: they wait for `sigwait`, and llama.cpp's threads, which
    inherit the mask, never see them.
    """
    options = _parser().parse_args(argv)
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        _check(options)
        with tempfile.TemporaryDirectory(prefix="tidegate-llamacpp-") as directory:
            _serve(options, _model(options, Path(directory)))
    except TidegateError as exc:
        sys.stderr.write(f"error: {exc.message}\nhint: {exc.hint}\n")
        return exc.exit_code
    return ExitCode.OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="llamacpp_server", description="llama.cpp behind HTTP with a tiny model.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", type=Path, help="a GGUF file; by default a tiny one is made on the spot")
    parser.add_argument("--model-name", default="tiny", help="what /v1/models calls it")
    parser.add_argument("--slots", type=int, default=8, help="requests served at once; more wait")
    parser.add_argument("--context-tokens", type=int, default=16_384, help="prompt and answer of one request")
    parser.add_argument("--threads", type=int, default=1, help="compute threads")
    parser.add_argument("--verbose", action="store_true", help="llama.cpp's own log on stderr")
    return parser


def _check(options: argparse.Namespace) -> None:
    """Refuses what llama.cpp itself would only abort on."""
    missing = [name for name in ("xllamacpp", "gguf", "numpy") if find_spec(name) is None]
    if missing:
        hint = "pip install 'tidegate[engine-llamacpp]'"
        raise UnavailableError(f"llama.cpp cannot run here: {', '.join(missing)} not installed", hint=hint)
    if options.model is not None and not options.model.is_file():
        raise BadInputError(f"--model {options.model}: there is no such file", hint="give a GGUF file, or no --model")
    if min(options.slots, options.context_tokens, options.threads) < 1:
        hint = "for example --slots 8 --context-tokens 16384 --threads 1"
        raise BadInputError("--slots, --context-tokens and --threads must be 1 or more", hint=hint)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((options.host, options.port))
        except (OSError, OverflowError) as exc:
            message = f"cannot listen on {options.host}:{options.port}: {exc}"
            raise UnavailableError(message, hint="choose another --port, or stop what holds this one") from exc


def _model(options: argparse.Namespace, directory: Path) -> Path:
    if options.model is not None:
        return Path(options.model)
    from tidegate.engines.tiny_model import write_tiny_model

    path = directory / "tiny.gguf"
    write_tiny_model(path)
    return path


def _serve(options: argparse.Namespace, model: Path) -> None:
    """Returns once a stop signal has come and the server is gone."""
    import xllamacpp

    try:
        server = xllamacpp.Server(_parameters(xllamacpp.CommonParams(), options, model))
    except RuntimeError as exc:
        hint = "--verbose shows llama.cpp's own log"
        raise UnavailableError(f"llama.cpp did not start with {model}: {exc}", hint=hint) from exc
    sys.stderr.write(f"llama.cpp listens on {server.listening_address}\n")
    signal.sigwait(STOP_SIGNALS)
    _cut_connections()
    del server


def _cut_connections() -> None:
    """Ends every TCP connection of this process: llama.cpp's own stop waits for clients that read slowly."""
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            with socket.socket(fileno=os.dup(number)) as connection:
                connection.shutdown(socket.SHUT_RDWR)
        except OSError:  # closed meanwhile, not a socket, or not connected
            continue


def _parameters(parameters: Any, options: argparse.Namespace, model: Path) -> Any:
    parameters.model.path = str(model)
    parameters.model_alias = {options.model_name}
    parameters.hostnames = [options.host]
    parameters.port = options.port
    parameters.n_ctx = options.context_tokens * options.slots
    parameters.n_parallel = options.slots
    parameters.cpuparams.n_threads = options.threads
    parameters.cpuparams_batch.n_threads = options.threads
    # Its HTTP server holds a thread for each open connection, waiting requests and probes included.
    parameters.n_threads_http = 4 * options.slots + 32
    parameters.endpoint_metrics = True
    parameters.n_gpu_layers = 0
    parameters.fit_params = False
    parameters.cache_ram_mib = 0
    parameters.ui = False
    if not options.verbose:
        parameters.verbosity = _QUIET
    return parameters


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
