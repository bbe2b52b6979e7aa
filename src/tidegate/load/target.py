"""Where requests go: one OpenAI-compatible endpoint over plain HTTP."""

from __future__ import annotations

import re
import resource
from typing import Final
from urllib.parse import urlsplit

from tidegate.errors import BadInputError, UnavailableError
from tidegate.wire.http import request_head
from tidegate.wire.openai import CHAT_PATH

SPARE_FILES: Final = 128
"""Descriptors kept for everything that is not a connection."""
DEFAULT_CONNECTIONS: Final = 16_384
_HEADER_TEXT: Final = re.compile(r"[!-~]+")


class Target:
    """Address, model and key of the server under load."""

    def __init__(self, url: str, model: str, api_key: str = "") -> None:
        """Raises `BadInputError` for anything but `http://host:port`, with or without `/v1`."""
        self.host, self.port, prefix = parse_http_url(url)
        self.url = f"http://{self._authority()}{prefix}"
        self.model = model
        self._path = prefix + CHAT_PATH
        self._headers = [(b"content-type", b"application/json"), (b"accept", b"text/event-stream, application/json")]
        if api_key:
            if not _HEADER_TEXT.fullmatch(api_key):
                raise BadInputError("the API key holds characters that no header can carry", hint="copy the key again")
            self._headers.append((b"authorization", b"Bearer " + api_key.encode()))

    def head(self, content_length: int) -> bytes:
        """The request head for a body of that many bytes."""
        return request_head("POST", self._path, self._headers, self._authority().encode(), content_length)

    def _authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_http_url(url: str) -> tuple[str, int, str]:
    """(host, port, path prefix without `/v1`). Raises `BadInputError`."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as exc:
        raise BadInputError(f"{url!r} is not a URL: {exc}", hint="write http://127.0.0.1:8080") from exc
    if parts.scheme == "https":
        raise BadInputError(f"{url!r}: TLS is not supported by the load driver", hint="use http://")
    if parts.scheme != "http" or not host or parts.query or parts.fragment:
        raise BadInputError(f"{url!r} is not an http URL", hint="write http://127.0.0.1:8080")
    if port == 0 or not _HEADER_TEXT.fullmatch(host + parts.path):
        raise BadInputError(
            f"{url!r} has port 0, a space, or a character outside ASCII", hint="write names as xn--… and paths with %XX"
        )
    return host, 80 if port is None else port, parts.path.rstrip("/").removesuffix("/v1")


def connection_bound(asked_for: int | None) -> int:
    """How many connections the driver may hold at once, after raising the soft file limit as far as allowed.

    Raises `UnavailableError` when more were asked for than the hard limit permits.
    """
    wanted = DEFAULT_CONNECTIONS if asked_for is None else asked_for
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
        soft = raised
    allowed = wanted if soft == resource.RLIM_INFINITY else soft - SPARE_FILES
    if allowed < wanted and asked_for is not None:
        raise UnavailableError(
            f"{wanted} connections need {needed} open files, and this system allows {soft}",
            hint=f"raise it with `ulimit -n {needed}`, or ask for at most {max(1, allowed)} connections",
        )
    return max(1, min(wanted, allowed))
