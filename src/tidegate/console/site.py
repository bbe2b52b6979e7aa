"""The page's files, from the package, with headers that keep it to itself: no outside script, style, frame or font."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
TYPES: Final = {
    "index.html": "text/html",
    "console.css": "text/css",
    "console.js": "text/javascript",
    "charts.js": "text/javascript",
    "words.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}


async def answer_file(request: Request) -> Response:
    """One of the page's files; read when asked for, so that a gateway nobody looks at does not hold them."""
    name = request.path_params["name"] or "index.html"
    if name not in TYPES:
        return PlainTextResponse(f"The console has no {name!r}.\n", 404)
    content = files("tidegate.console").joinpath("static", name).read_bytes()
    return Response(content, headers=HEADERS, media_type=TYPES[name])
