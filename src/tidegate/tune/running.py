"""What an engine that runs says of itself: its version, its configuration, and its process.

In: a URL, and a process id where the engine runs on this host. Out: `Running`; what could not be had is None. Only GETs
are sent; a process is only read. Sources: vLLM 0.33 and 0.32, SGLang 0.5.17 and 0.5.23.
"""

from __future__ import annotations

import http.client
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
import psutil
from msgspec import Struct

from tidegate.errors import BadInputError, UnavailableError
from tidegate.spec.lock import LockedFiles
from tidegate.tune.digests import digest_folder, nvidia_driver
from tidegate.wire.prometheus import parse

TIMEOUT_S: Final = 5.0
MOST_BYTES: Final = 4 * 2**20
CACHE_CONFIG: Final = "vllm:cache_config_info"
_LOCAL: Final = ("127.0.0.1", "localhost", "::1")


class Running(Struct, frozen=True, kw_only=True):
    """One engine as it was found. None: it does not say, or nobody could look."""

    url: str
    emulated: bool = False
    version: str | None = None
    model: str | None = None
    """What it calls the model it serves."""
    context_tokens: int | None = None
    cache: dict[str, str] | None = None
    """vLLM's cache configuration, from its metrics."""
    server: dict[str, Any] | None = None
    """SGLang's whole set of arguments."""
    counters: dict[str, Any] | None = None
    """An emulated engine's own."""
    argv: list[str] | None = None
    env: dict[str, str] | None = None
    driver: str | None = None
    files: LockedFiles | None = None

    @property
    def kv_tokens(self) -> int | None:
        """Tokens of KV cache that it says it has."""
        if self.server is not None:
            return _whole(self.server.get("max_total_num_tokens"))
        if self.cache is None:
            return None
        told = _whole(self.cache.get("kv_cache_size_tokens"))
        if told is not None:
            return told
        blocks, size = _whole(self.cache.get("num_gpu_blocks")), _whole(self.cache.get("block_size"))
        return None if blocks is None or size is None else blocks * size


def look(url: str, *, pid: int | None = None, model_dir: Path | None = None) -> Running:
    """Asks the engine at `url`. Its process is found by its port where the URL is this host's and no `pid` is given.

    Raises `UnavailableError` when nothing answers there, `BadInputError` for a pid that does not exist.
    """
    address = urlsplit(url)
    host, port = address.hostname or "", address.port or 80
    models = _json(host, port, "/v1/models", url)
    version = _json(host, port, "/version", url) or {}
    server = _json(host, port, "/server_info", url)
    counters = _json(host, port, "/emulated/counters", url)
    card = _first(models)
    if pid is None and host in _LOCAL:
        pid = listener(port)
    argv, env = process_of(pid) if pid is not None else (None, None)
    told = version.get("version") or (server or {}).get("version")
    return Running(
        url=url,
        emulated=counters is not None,
        version=str(told) if told else None,
        model=card.get("id"),
        context_tokens=_whole(card.get("max_model_len")),
        cache=_cache(host, port, url),
        server=server if server is not None and "model_path" in server else None,
        counters=counters,
        argv=argv,
        env=env,
        driver=nvidia_driver() if host in _LOCAL else None,
        files=digest_folder(model_dir) if model_dir is not None else None,
    )


def listener(port: int) -> int | None:
    """The process that listens on a port of this host, where it can be seen."""
    try:
        for connection in psutil.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
                return connection.pid
    except psutil.AccessDenied:
        return None
    return None


def process_of(pid: int) -> tuple[list[str] | None, dict[str, str] | None]:
    """Command line and environment. Raises `BadInputError` when there is no such process."""
    try:
        process = psutil.Process(pid)
        argv = process.cmdline()
    except psutil.NoSuchProcess:
        raise BadInputError(
            f"there is no process {pid}", hint="give the engine's process id, or leave --pid out"
        ) from None
    except psutil.AccessDenied:
        return None, None
    try:
        return argv, dict(process.environ())
    except (psutil.AccessDenied, psutil.NoSuchProcess):
        return argv, None


def _cache(host: str, port: int, url: str) -> dict[str, str] | None:
    status, body = _get(host, port, "/metrics", url)
    if status != 200:
        return None
    samples = parse(body.decode("utf-8", "replace"), frozenset([CACHE_CONFIG])).get(CACHE_CONFIG)
    return dict(samples[0].labels) if samples else None


def _json(host: str, port: int, path: str, url: str) -> dict[str, Any] | None:
    status, body = _get(host, port, path, url)
    if status != 200:
        return None
    try:
        value = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return None
    return value if isinstance(value, dict) else None


def _get(host: str, port: int, path: str, url: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read(MOST_BYTES)
    except (OSError, http.client.HTTPException) as exc:
        hint = "start the engine, or name another with --url"
        raise UnavailableError(f"{url} does not answer: {exc}", hint=hint) from None
    finally:
        connection.close()


def _first(models: dict[str, Any] | None) -> dict[str, Any]:
    data = models.get("data") if models is not None else None
    return data[0] if isinstance(data, list) and data and isinstance(data[0], dict) else {}


def _whole(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError):
        return None
