"""Images that clients give names (``uuid``), to send a name in place of the bytes the next time.

The cache server knows which image a name stands for. A name is known to its owner alone: it is sent to the cache server
as a hash of the API key's name, the cache salt and the uuid. Where a request has both, the bytes count, and the name
stands for them from then on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from mmserve.httpserver.call import GenerateCall, MediaItem, MediaRef
from mmserve.httpserver.media.content_key import framed
from mmserve.messages.cache import AllocItem, NamedImage
from mmserve.runtime.errors import InvalidRequest, MediaNotStored, quoted

LookUp = Callable[[Sequence[bytes]], Awaitable[Sequence[NamedImage | None]]]
"""LeaseSource.named."""


def name_of(call: GenerateCall, uuid: str) -> bytes:
    """The name of the owner's image as the cache server knows it: 32 bytes."""
    return hashlib.sha256(framed(b"uuid", call.owner.encode(), call.cache_salt.encode(), uuid.encode())).digest()


async def with_named(call: GenerateCall, read: Sequence[MediaItem], look_up: LookUp) -> list[MediaItem]:
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
    wanted = {ref.uuid: name_of(call, ref.uuid) for ref in call.media if ref.is_named and ref.uuid not in given}
    stored = dict(zip(wanted, await look_up(tuple(wanted.values())), strict=True)) if wanted else {}
    return [
        _named(call, ref, item or given.get(ref.uuid), stored.get(ref.uuid))
        for ref, item in zip(call.media, found, strict=True)
    ]


def _named(call: GenerateCall, ref: MediaRef, item: MediaItem | None, stored: NamedImage | None) -> MediaItem:
    if item is not None:
        name = name_of(call, ref.uuid) if ref.uuid else b""
        return msgspec.structs.replace(item, param=ref.param, name=name)
    if stored is None:
        raise not_stored(ref.param)
    key = stored.item.key
    return MediaItem(b"", stored.width, stored.height, key, ref.param, stored.loading_nbytes, stored=stored.item)


def not_stored(param: str) -> MediaNotStored:
    """The error of a request that has only the name of an image."""
    return MediaNotStored("no image is stored under this uuid (any more): send the image's data with it", param=param)


def names_of(items: Sequence[MediaItem], alloc_items: Sequence[AllocItem]) -> dict[bytes, NamedImage]:
    """The names that a request gives. ``alloc_items[i]``: what the cache has ``items[i]`` as."""
    return {
        item.name: NamedImage(stored, item.width, item.height, item.loading_nbytes)
        for item, stored in zip(items, alloc_items, strict=True)
        if item.name
    }
