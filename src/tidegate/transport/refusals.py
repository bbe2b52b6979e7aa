"""What a request head must satisfy beyond llhttp's grammar, and how a refusal is written.

In: a head's bytes and the exchange it opens. Out: the exchange, or `HeadProblem` with a status and one sentence.
Errors go out in OpenAI's shape and close the connection: after a framing error nobody can say where the next
request begins.
"""

from __future__ import annotations

import asyncio
import re
from typing import Final

from tidegate.transport.exchange import Exchange
from tidegate.wire.http import CLOSE, Headers, malformed_body, status_line

MAX_HEADERS: Final = 100
VERSION_BYTES: Final = len(b" HTTP/1.1")
_ABSOLUTE: Final = re.compile(r"https?://[^/?]*", re.IGNORECASE)


class HeadProblem(Exception):  # noqa: N818 - a refusal to be answered, not a program error
    """Why a head is refused."""

    def __init__(self, status: int, message: str, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code


def inspect_head(exchange: Exchange, head: bytes, body_limit_bytes: int) -> None:
    """Checks a parsed head and notes in `exchange` what framing needs. Raises `HeadProblem`."""
    named = exchange.named
    end = head.find(b"\r\n")
    if head[end - VERSION_BYTES : end] != b" HTTP/1.1":
        _other_version(exchange, head[end - VERSION_BYTES : end])
    if len(named) != len(exchange.headers) or len(named) > MAX_HEADERS:
        _check_repeated(exchange.headers)
    if b"host" not in named and exchange.http_minor == 1:
        raise HeadProblem(400, "A Host header is needed.", "malformed_request")
    if not exchange.target.startswith("/") or "#" in exchange.target:
        exchange.target = _origin_form(exchange.target)
    length = named.get(b"content-length")
    if length is not None:
        exchange.content_length = _length(length, body_limit_bytes)
    if b"transfer-encoding" in named:
        exchange.content_length = _chunked(named[b"transfer-encoding"], exchange.http_minor)
    if b"expect" in named:
        exchange.expects_continue = _continue(named[b"expect"], exchange.http_minor)
    if b"connection" in named or exchange.http_minor == 0:
        exchange.keep_alive = _keeps_alive(exchange)


def _other_version(exchange: Exchange, version: bytes) -> None:
    if version != b" HTTP/1.0":
        raise HeadProblem(505, "Only HTTP/1.1 and HTTP/1.0 are spoken here.", "http_version_not_supported")
    exchange.http_minor = 0


def _check_repeated(headers: Headers) -> None:
    """Some headers may come only once, since whoever reads the other copy sees another request."""
    if len(headers) > MAX_HEADERS:
        raise HeadProblem(431, "The request has too many headers.", "head_too_large")
    for once in (b"host", b"content-length", b"transfer-encoding", b"expect", b"authorization"):
        if sum(1 for name, _ in headers if name == once) > 1:
            raise HeadProblem(400, f"The {once.decode()} header is repeated.", "malformed_request")


def _keeps_alive(exchange: Exchange) -> bool:
    tokens = [
        token.strip().lower()
        for name, value in exchange.headers
        if name == b"connection"
        for token in value.split(b",")
    ]
    return b"close" not in tokens and (exchange.http_minor == 1 or b"keep-alive" in tokens)


def _length(value: bytes, limit_bytes: int) -> int:
    if not value.isdigit() or len(value) > 18:
        raise HeadProblem(400, "The Content-Length header is not a length.", "malformed_request")
    length = int(value)
    if length > limit_bytes:
        raise HeadProblem(413, f"The request body is larger than {limit_bytes} bytes.", "body_too_large")
    return length


def _chunked(value: bytes, minor: int) -> int:
    if value.strip().lower() != b"chunked":
        raise HeadProblem(501, "Only the chunked transfer coding is spoken here.", "unknown_transfer_coding")
    if minor == 0:
        raise HeadProblem(400, "HTTP/1.0 has no transfer coding.", "malformed_request")
    return -1


def _continue(value: bytes, minor: int) -> bool:
    if value.lower() != b"100-continue":
        raise HeadProblem(417, "The only expectation met here is 100-continue.", "expectation_failed")
    return minor == 1


def _origin_form(text: str) -> str:
    """Path and query of an absolute target (RFC 9112 §3.2.2): what follows the authority."""
    if "#" in text:
        raise HeadProblem(400, "The request target has a fragment.", "malformed_request")
    match = _ABSOLUTE.match(text)
    if match is not None:
        rest = text[match.end() :]
        return rest if rest.startswith("/") else "/" + rest
    if text == "*":
        return text
    raise HeadProblem(400, "The request target is not a path.", "malformed_request")


def refuse(transport: asyncio.Transport, status: int, message: str, code: str) -> None:
    """Writes a whole refusal that announces the close."""
    body = malformed_body(message.replace('"', "'").replace("\\", ""), code)
    transport.write(
        b"%b%b%bcontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
        % (status_line(status), CLOSE, b"retry-after: 1\r\n" if status in (429, 503) else b"", len(body), body)
    )
