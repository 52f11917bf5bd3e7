"""The page at `/`: static files that are read once, and the headers that keep a browser to them.

It knows nothing of models or keys: whatever the page shows it fetches from the other routes, with the user's key.
"""

import hashlib
from importlib.resources import files
from typing import Any

import msgspec
from litestar import Request, Response, route
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from forgelm.api.auth import OPEN
from forgelm.errors import NotFound

MEDIA_TYPES = {
    "html": "text/html",
    "js": "text/javascript",
    "css": "text/css",
    "svg": "image/svg+xml",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # No script of ours may turn text into HTML either, which is how a model's answer would become code.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Kept, and asked about each time: an upgrade shows at once, and what is the same isn't sent again.
    "Cache-Control": "no-cache",
}
PAGE, ICON = "index.html", "icon.svg"

Asked = Request[Any, Any, Any]


class _File(msgspec.Struct, frozen=True):
    """One file of the page."""

    body: bytes
    media_type: str
    etag: str


def ui_routes() -> list[HTTPRouteHandler]:
    """The handlers, with all files in memory."""
    found = _read()

    @route("/", http_method=["GET", "HEAD"], opt={OPEN: True})
    async def page(request: Asked) -> Response[bytes]:
        return _answer(request, found[PAGE])

    @route("/ui/{name:str}", http_method=["GET", "HEAD"], opt={OPEN: True})
    async def file(request: Asked, name: FromPath[str]) -> Response[bytes]:
        if name not in found:
            raise NotFound(f"no file /ui/{name[:80]}")
        return _answer(request, found[name])

    @route("/favicon.ico", http_method=["GET", "HEAD"], opt={OPEN: True})
    async def icon(request: Asked) -> Response[bytes]:
        return _answer(request, found[ICON])

    return [page, file, icon]


def _read() -> dict[str, _File]:
    """Name → file. Raises `FileNotFoundError` for an installation without them."""
    entries = [entry for entry in (files("forgelm.api") / "ui").iterdir() if "." in entry.name]
    return {entry.name: _file(entry.name, entry.read_bytes()) for entry in entries}


def _file(name: str, body: bytes) -> _File:
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    return _File(body, MEDIA_TYPES[name.rpartition(".")[2]], etag)


def _answer(request: Asked, file: _File) -> Response[bytes]:
    headers = {**HEADERS, "ETag": file.etag}
    known = request.headers.get("if-none-match", "")
    # A proxy that compresses answers makes the tag a weak one.
    if any(tag.strip().removeprefix("W/") in (file.etag, "*") for tag in known.split(",")):
        return Response(b"", status_code=304, media_type=file.media_type, headers=headers)
    return Response(file.body, status_code=200, media_type=file.media_type, headers=headers)
