"""HTTP/1.1 heads as bytes: what both sides of the data path write, and what must not be passed on.

In: methods, targets, status codes and header pairs (lower-case names). Out: heads ready to be written.
Parsing is llhttp's (httptools) with the stricter rules of `transport`; framing headers are never taken over from
a peer, because each connection frames for itself (RFC 9112 §6, §9.6).
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

Headers = list[tuple[bytes, bytes]]

HOP_BY_HOP: Final = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    )
)
"""Meant for the next hop only (RFC 9110 §7.6.1); a proxy drops them in both directions."""

FRAMING: Final = HOP_BY_HOP | {b"content-length", b"expect", b"host"}
"""What a request head must not inherit: this side writes its own."""

STATUS_LINES: Final[dict[int, bytes]] = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode("ascii")) for status in HTTPStatus
}
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"
CHUNKED: Final = b"transfer-encoding: chunked\r\n"
CLOSE: Final = b"connection: close\r\n"
KEEP_ALIVE: Final = b"connection: keep-alive\r\n"
JSON: Final = (b"content-type", b"application/json")


def status_line(status: int) -> bytes:
    """`HTTP/1.1 404 Not Found\\r\\n`; a code without a registered phrase has none."""
    return STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


def head_lines(headers: Headers) -> bytes:
    """The header lines, each ended by CRLF."""
    return b"".join([b"%b: %b\r\n" % pair for pair in headers])


def passed_lines(headers: Headers, dropped: frozenset[bytes]) -> bytes:
    """The lines of `headers` without `dropped`. `connection` must be among the dropped and name nothing further."""
    return b"".join([b"%b: %b\r\n" % pair for pair in headers if pair[0] not in dropped])


def passed_on(headers: Headers, dropped: frozenset[bytes]) -> Headers:
    """`headers` without `dropped` and without those that a `connection` header names."""
    named: set[bytes] = set()
    for name, value in headers:
        if name == b"connection" and value.lower() not in (b"keep-alive", b"close"):
            named.update([token.strip().lower() for token in value.split(b",")])
    return [pair for pair in headers if pair[0] not in dropped and pair[0] not in named]


def request_head(method: str, target: str, headers: Headers, host: bytes, content_length: int) -> bytes:
    """A whole request head for a keep-alive connection; `headers` must already be free of `FRAMING`."""
    return b"%b %b HTTP/1.1\r\nhost: %b\r\n%bcontent-length: %d\r\n\r\n" % (
        method.encode("ascii"),
        target.encode("ascii"),
        host,
        head_lines(headers),
        content_length,
    )


def malformed_body(message: str, code: str) -> bytes:
    """OpenAI's error shape for a request that was refused before it was understood. Plain ASCII words only."""
    return b'{"error":{"message":"%b","type":"invalid_request_error","param":null,"code":"%b"}}' % (
        message.encode("ascii"),
        code.encode("ascii"),
    )
