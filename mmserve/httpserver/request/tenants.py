"""Whose caches a request uses: those of all, or those of its API key. Pure.

What is cached shows in how long an answer takes. So clients that must not learn of each other's pictures and prompts
must not share them. A key's salt is a keyed hash of its name: it says nothing of the key, and is equal on all servers
with the same seed.
"""

from __future__ import annotations

import hashlib

from msgspec.structs import replace

from mmserve.config.api_keys import has_tenants
from mmserve.config.config import Config
from mmserve.httpserver.call import GenerateCall
from mmserve.httpserver.media.content_key import framed

_DIGEST_NBYTES = 16


class Tenants:
    """``seed``: the secret of the salts, as of content keys."""

    def __init__(self, config: Config, seed: int) -> None:
        self.are_apart = has_tenants(config)
        """Each API key has caches of its own."""
        self._seed = (seed % 2**64).to_bytes(8, "big")

    def own(self, call: GenerateCall, owner: str) -> GenerateCall:
        """The call of the API key with this name, with the salt of its caches. A client's own salt divides them."""
        if not (self.are_apart and owner):
            return replace(call, owner=owner)
        fields = framed(b"tenant", owner.encode(), call.cache_salt.encode())
        salt = hashlib.blake2b(fields, key=self._seed, digest_size=_DIGEST_NBYTES).hexdigest()
        return replace(call, owner=owner, cache_salt=salt)
