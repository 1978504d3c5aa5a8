"""Checks the API key of a request, and what it opens. Keys are compared in constant time."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence, Set

from mmserve.config.api_keys import ApiKey, Area, digest_of
from mmserve.runtime.errors import Forbidden, Unauthorized

OPEN_PATHS = frozenset({"/", "/health", "/live", "/ready"})
"""Paths for probes, which send no key."""


class ApiKeyAuth:
    """Without ``keys`` every request is accepted. ``open_paths`` need no key, besides those for probes."""

    def __init__(self, keys: Sequence[ApiKey], open_paths: Set[str] = frozenset()) -> None:
        self._keys = keys
        self._open_paths = OPEN_PATHS | open_paths

    @property
    def required(self) -> bool:
        return bool(self._keys)

    def check(self, path: str, headers: Mapping[str, str]) -> str | None:
        """The name of the request's key; None where none is needed.

        The key may be a Bearer token or x-api-key. Raises Unauthorized, or Forbidden if the key does not open the path.
        """
        if not self._keys or path in self._open_paths:
            return None
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = [token.strip()] if scheme.lower() == "bearer" else []
        if "x-api-key" in headers:
            given.append(headers["x-api-key"])
        if not any(given):
            raise Unauthorized("send an API key as Bearer token or x-api-key")
        key = self._find(given)
        if key is None:
            raise Unauthorized("missing or wrong API key")
        if (area := _area(path)) not in key.areas:
            raise Forbidden(f"this API key does not open {area!r}: give it that area in --api-key-file, or use another")
        return key.name

    def _find(self, given: Sequence[str]) -> ApiKey | None:
        """Compares with every key, so that the time does not tell which one was close."""
        found = None
        for digest in map(digest_of, given):
            for key in self._keys:
                if hmac.compare_digest(digest, key.digest):
                    found = key
        return found


def _area(path: str) -> Area:
    first = path.split("/", 2)[1] if path.startswith("/") else ""
    return "metrics" if first == "metrics" else "admin" if first == "admin" else "api"
