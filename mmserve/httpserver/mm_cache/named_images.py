"""Images that clients give names (``uuid``), to send a name in place of the bytes the next time.

A name stands for an image and the settings of the image processor with which it was sent.

The cache server knows which image a name stands for. A name is known to its owner alone: it is sent to the cache server
as a hash of the API key's name, the cache salt and the uuid. Where a request has both, the bytes count, and the name
stands for them from then on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Protocol

import msgspec

from mmserve.httpserver.call import GenerateCall, MediaItem, MediaRef
from mmserve.httpserver.media.content_key import framed
from mmserve.messages.cache import AllocItem, NamedImage
from mmserve.messages.media import Processing
from mmserve.runtime.errors import InvalidRequest, MediaNotStored, quoted


class Names(Protocol):
    """Implemented by leases.MediaLeases."""

    def settings_digest(self, processing: Processing) -> bytes: ...
    async def named(self, names: Sequence[bytes]) -> Sequence[NamedImage | None]: ...


def name_of(call: GenerateCall, settings: bytes, uuid: str) -> bytes:
    """The name of the owner's image as the cache server knows it: 32 bytes. ``settings``: digest of the processor's."""
    fields = (b"uuid", settings, call.owner.encode(), call.cache_salt.encode(), uuid.encode())
    return hashlib.sha256(framed(*fields)).digest()


async def with_named(call: GenerateCall, read: Sequence[MediaItem], names: Names) -> list[MediaItem]:
    """The items of all images of ``call``. ``read``: of those that came with their bytes, which get their names here.

    A name that the request gives to an image may stand for it elsewhere in the request. Raises MediaNotStored, and
    InvalidRequest if the request gives one name to two images.
    """
    if not any(ref.uuid for ref in call.media):
        return list(read)
    items = iter(read)
    found = [None if ref.is_named else next(items) for ref in call.media]
    given: dict[str, MediaItem] = {}
    for ref, item in zip(call.media, found, strict=True):
        if item is not None and ref.uuid and given.setdefault(ref.uuid, item).key != item.key:
            raise InvalidRequest(f"another image of the request has the uuid {quoted(ref.uuid)}", param=ref.param)
    settings = names.settings_digest(call.processing)
    hashed = {ref.uuid: name_of(call, settings, ref.uuid) for ref in call.media if ref.uuid}
    wanted = {ref.uuid: hashed[ref.uuid] for ref in call.media if ref.is_named and ref.uuid not in given}
    stored = dict(zip(wanted, await names.named(tuple(wanted.values())), strict=True)) if wanted else {}
    return [
        _named(ref, hashed.get(ref.uuid, b""), item or given.get(ref.uuid), stored.get(ref.uuid), call.processing)
        for ref, item in zip(call.media, found, strict=True)
    ]


def _named(
    ref: MediaRef, name: bytes, item: MediaItem | None, stored: NamedImage | None, processing: Processing
) -> MediaItem:
    if item is not None:
        return msgspec.structs.replace(item, param=ref.param, name=name)
    if stored is None:
        raise not_stored(ref.param)
    key, size = stored.item.key, (stored.width, stored.height)
    return MediaItem(b"", *size, key, ref.param, processing, stored.loading_nbytes, stored=stored.item)


def not_stored(param: str) -> MediaNotStored:
    """The error of a request that has only the name of an image."""
    return MediaNotStored(
        "no image is stored under this uuid with these settings (any more): send the image's data with it", param=param
    )


def names_of(items: Sequence[MediaItem], alloc_items: Sequence[AllocItem]) -> dict[bytes, NamedImage]:
    """The names that a request gives. ``alloc_items[i]``: what the cache has ``items[i]`` as."""
    return {
        item.name: NamedImage(stored, item.width, item.height, item.loading_nbytes)
        for item, stored in zip(items, alloc_items, strict=True)
        if item.name
    }
