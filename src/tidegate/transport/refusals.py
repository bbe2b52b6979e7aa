"""What a request head must satisfy beyond llhttp's grammar, and how a refusal is written.

In: a head's bytes and its parsed parts. Out: `HeadFacts`, or `HeadProblem` with a status and one sentence.
Errors go out in OpenAI's shape and close the connection: after a framing error nobody can say where the next
request begins.
"""

from __future__ import annotations

import asyncio
from typing import Final

from tidegate.wire.http import CLOSE, Headers, malformed_body, status_line

MAX_HEADERS: Final = 100
_SPECIAL: Final = frozenset((b"host", b"content-length", b"transfer-encoding", b"expect"))


class HeadProblem(Exception):  # noqa: N818 - a refusal to be answered, not a program error
    """Why a head is refused."""

    def __init__(self, status: int, message: str, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code


class HeadFacts:
    """What framing needs to know of a head. `content_length` is −1 for a chunked body."""

    __slots__ = ("content_length", "expects_continue", "minor", "target")

    def __init__(self, target: str, minor: int, content_length: int, expects_continue: bool) -> None:
        self.target = target
        self.minor = minor
        self.content_length = content_length
        self.expects_continue = expects_continue


def inspect_head(head: bytes, target: bytes, headers: Headers, body_limit_bytes: int) -> HeadFacts:
    """Checks a parsed head. Raises `HeadProblem`."""
    minor = _minor_version(head)
    if b"\r\n " in head or b"\r\n\t" in head:
        raise HeadProblem(400, "Folded header lines are not allowed.", "malformed_request")
    if len(headers) > MAX_HEADERS:
        raise HeadProblem(431, "The request has too many headers.", "head_too_large")
    content_length = hosts = 0
    expects_continue = False
    for name, value in headers:
        if name not in _SPECIAL:
            continue
        if name == b"host":
            hosts += 1
        elif name == b"content-length":
            content_length = _length(value, body_limit_bytes)
        elif name == b"transfer-encoding":
            content_length = _chunked(value, minor)
        else:
            expects_continue = _continue(value, minor)
    if hosts != 1 and (minor == 1 or hosts > 1):
        raise HeadProblem(400, "Exactly one Host header is needed.", "malformed_request")
    return HeadFacts(_origin_form(target), minor, content_length, expects_continue)


def _minor_version(head: bytes) -> int:
    end = head.find(b"\r\n")
    version = head[end - 9 : end]
    if version == b" HTTP/1.1":
        return 1
    if version == b" HTTP/1.0":
        return 0
    raise HeadProblem(505, "Only HTTP/1.1 and HTTP/1.0 are spoken here.", "http_version_not_supported")


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


def _origin_form(target: bytes) -> str:
    """Path and query; of an absolute target (RFC 9112 §3.2.2) what follows the authority."""
    text = target.decode("ascii", "replace")
    if text.startswith("/"):
        return text
    if text[:7].lower() == "http://" or text[:8].lower() == "https://":
        slash = text.find("/", 8)
        return text[slash:] if slash > 0 else "/"
    if text == "*":
        return text
    raise HeadProblem(400, "The request target is not a path.", "malformed_request")


def refuse(transport: asyncio.Transport, status: int, message: str, code: str) -> None:
    """Writes a whole refusal that announces the close."""
    body = malformed_body(message.replace('"', "'").replace("\\", ""), code)
    transport.write(
        b"%b%bcontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
        % (status_line(status), CLOSE, len(body), body)
    )
