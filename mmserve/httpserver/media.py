"""The images of one request, all at once: bytes, size from the header, content key. Decodes no pixels, owns no slot.

Everything that takes time runs in threads or, for http(s), awaits; the event loop only hands over.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Sequence

import xxhash

from mmserve.deployment import Deployment
from mmserve.errors import MediaError, MmserveError
from mmserve.httpserver.addresses import AddressPolicy
from mmserve.httpserver.byte_budget import ByteBudget
from mmserve.httpserver.call import MediaItem, MediaRef
from mmserve.httpserver.fetch import Fetcher
from mmserve.httpserver.local_media import read_data_url, read_file_url
from mmserve.httpserver.threads import Threads
from mmserve.metrics.client import MetricsClient
from mmserve.processors.picture import header
from mmserve.processors.registry import ImageProcessor, processor_for

_SCHEMA = b"mmserve-image-1"
_LENGTH = struct.Struct("<Q")
_SIZE = struct.Struct("<QQ")


class MediaReader:
    """One per HTTP worker. ``policy`` is for tests; by default it follows the configuration."""

    def __init__(self, deployment: Deployment, metrics: MetricsClient, *, policy: AddressPolicy | None = None) -> None:
        config = deployment.config
        self._config = config
        self._metrics = metrics
        self._threads = Threads("media", config.concurrent_alloc_workers, concurrent=config.enable_concurrent_alloc)
        policy = policy or AddressPolicy(config.allowed_media_domains)
        self._fetcher = Fetcher(policy, timeout_s=config.media_fetch_timeout)
        self._processor = processor_for(deployment.model)
        self._hash_seed = deployment.hash_seed % 2**64
        self._model_path = deployment.model.path.encode()

    async def read(self, refs: Sequence[MediaRef], cache_salt: str) -> list[MediaItem]:
        """In the order of ``refs``. Raises MediaError or TooLarge with the image's ``param``."""
        if not refs:
            return []
        if self._processor is None:
            raise MediaError("this model takes no images", param=refs[0].param)
        started_s = time.monotonic()
        data = await self._read_all(refs)
        read_s = time.monotonic()
        items = await self._identify(refs, data, self._processor, cache_salt)
        self._metrics.add("mm_fetch_seconds", read_s - started_s)
        self._metrics.add("mm_hash_seconds", time.monotonic() - read_s)
        return items

    async def aclose(self) -> None:
        """Close connections and threads; a thread that still reads ends by itself."""
        await self._fetcher.aclose()
        self._threads.close()

    async def _read_all(self, refs: Sequence[MediaRef]) -> list[bytes]:
        budget = ByteBudget(int(self._config.max_body_mb * 2**20))
        local = [index for index, ref in enumerate(refs) if not _is_remote(ref)]
        remote = [index for index, ref in enumerate(refs) if _is_remote(ref)]
        sizes = [refs[index].nbytes for index in local]
        try:
            async with asyncio.TaskGroup() as group:
                fetches = [group.create_task(self._fetch(refs[index], budget)) for index in remote]
                reads = group.create_task(
                    self._threads.map(lambda index: self._read_local(refs[index], budget), local, sizes)
                )
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        found = dict(zip(local, reads.result(), strict=True))
        found |= {index: fetch.result() for index, fetch in zip(remote, fetches, strict=True)}
        return [found[index] for index in range(len(refs))]

    async def _fetch(self, ref: MediaRef, budget: ByteBudget) -> bytes:
        try:
            return await self._fetcher.get(ref.url, budget)
        except MmserveError as error:
            error.param = ref.param
            raise

    def _read_local(self, ref: MediaRef, budget: ByteBudget) -> bytes:
        try:
            match _scheme(ref):
                case "data":
                    return read_data_url(ref, budget)
                case "file":
                    return read_file_url(ref.url, self._config.allowed_local_media_path, budget)
            raise MediaError("an image's URL must begin with data:, http:, https: or file:")
        except MmserveError as error:
            error.param = ref.param
            raise

    async def _identify(
        self, refs: Sequence[MediaRef], data: Sequence[bytes], processor: ImageProcessor, cache_salt: str
    ) -> list[MediaItem]:
        shared = _framed(_SCHEMA, self._model_path, processor.settings_digest(), cache_salt.encode())

        def identify(index: int) -> MediaItem:
            ref, content = refs[index], data[index]
            width, height = self._size(content, ref.param)
            return MediaItem(content, width, height, self._key(shared, width, height, content), ref.param)

        return await self._threads.map(identify, range(len(refs)), [len(one) for one in data])

    def _size(self, content: bytes, param: str) -> tuple[int, int]:
        try:
            return header(content, self._config.max_image_pixels)
        except MmserveError as error:
            error.param = param
            raise

    def _key(self, shared: bytes, width: int, height: int, content: bytes) -> bytes:
        """128 bits over everything that makes the embedding what it is. Length frames keep fields apart."""
        digest = xxhash.xxh3_128(shared, seed=self._hash_seed)
        digest.update(_framed(_SIZE.pack(width, height)))
        digest.update(_LENGTH.pack(len(content)))
        digest.update(content)
        return bytes(digest.digest())


def _framed(*fields: bytes) -> bytes:
    return b"".join(_LENGTH.pack(len(field)) + field for field in fields)


def _scheme(ref: MediaRef) -> str:
    return ref.url[:8].partition(":")[0].lower()


def _is_remote(ref: MediaRef) -> bool:
    return _scheme(ref) in ("http", "https")
