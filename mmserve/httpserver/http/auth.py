"""Checks the API key of a request: one key for the whole server, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

from mmserve.runtime.errors import Unauthorized

OPEN_PATHS = frozenset({"/health", "/live", "/ready"})
"""Paths for probes, which send no key."""


class ApiKeyAuth:
    """``api_key`` None: every request is accepted."""

    def __init__(self, api_key: str | None) -> None:
        self._digest = None if api_key is None else _digest(api_key)

    def check(self, path: str, headers: Mapping[str, str]) -> None:
        """Raise Unauthorized unless the path is open or the headers have the key, as Bearer token or x-api-key."""
        if self._digest is None or path in OPEN_PATHS:
            return
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        if not hmac.compare_digest(_digest(given), self._digest):
            raise Unauthorized("missing or wrong API key" if given else "send the API key as Bearer token or x-api-key")


def _digest(key: str) -> bytes:
    """A digest, so that the compared strings have equal lengths; their comparison does not leak the key's length."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
