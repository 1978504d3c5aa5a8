"""The files of the web pages, read and compressed once, when a worker starts; and the headers they are sent with."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from starlette.requests import Request
from starlette.responses import Response

STATIC = Path(__file__).parent / "static"
PAGES = {"/": "index.html", "/dashboard": "dashboard.html"}
"""The file of each page. All other files are below ``/ui/``."""
ASSETS = "/ui/"
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
# Scripts and styles only from files of this server, no markup made of strings, and no request to anywhere else: what a
# model writes can neither run nor be sent away, even if the page failed to show it as text.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    # Names of files stay the same from version to version, so browsers ask each time whether one has changed.
    "cache-control": "no-cache",
}


@dataclass(frozen=True)
class WebFile:
    """One file in both forms that it is sent in. ``etag``: of the first; that of the other ends with ``-gz``."""

    content: bytes
    compressed: bytes
    media_type: str
    etag: str

    @classmethod
    def read(cls, path: Path) -> Self:
        content = path.read_bytes()
        return cls(
            content,
            gzip.compress(content, 9, mtime=0),
            _MEDIA_TYPES[path.suffix],
            hashlib.sha256(content).hexdigest()[:32],
        )

    def response(self, request: Request) -> Response:
        """The file, or 304 if the browser has it."""
        compress = "gzip" in request.headers.get("accept-encoding", "")
        etag = f'"{self.etag}-gz"' if compress else f'"{self.etag}"'
        headers = {**_HEADERS, "etag": etag, "vary": "Accept, Accept-Encoding"}
        if etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if compress:
            headers["content-encoding"] = "gzip"
        return Response(self.compressed if compress else self.content, media_type=self.media_type, headers=headers)


@dataclass(frozen=True)
class WebFiles:
    """All files by the path they are asked for. Nothing else is looked up on the disk."""

    by_path: Mapping[str, WebFile]

    @classmethod
    def read(cls) -> Self:
        found = {path.name: WebFile.read(path) for path in STATIC.iterdir()}
        pages = {path: found.pop(name) for path, name in PAGES.items()}
        return cls(pages | {ASSETS + name: file for name, file in found.items()})

    @property
    def paths(self) -> frozenset[str]:
        """Sent to anybody: the page asks for the API key itself."""
        return frozenset(self.by_path)


def wants_page(request: Request) -> bool:
    """True for a browser that opens an address. Programs that ask for ``/`` name no HTML."""
    return "text/html" in request.headers.get("accept", "")
