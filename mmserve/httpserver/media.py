"""The images of one request, all at once: bytes, size from the header, content key. Decodes no pixels, owns no slot.

Everything that takes time runs in threads or, for http(s), awaits; the event loop only hands over. The images of a
request are read all at once (v2) or one after another (v1).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from mmserve.deployment import Deployment
from mmserve.errors import MediaError, MmserveError
from mmserve.httpserver.addresses import AddressPolicy
from mmserve.httpserver.byte_budget import ByteBudget
from mmserve.httpserver.call import MediaItem, MediaRef
from mmserve.httpserver.content_key import ContentKeys
from mmserve.httpserver.fetch import Fetcher
from mmserve.httpserver.lane import Generation
from mmserve.httpserver.local_media import read_data_url, read_file_url
from mmserve.httpserver.threads import Threads
from mmserve.metrics.client import MetricsClient
from mmserve.processors.picture import Header, header
from mmserve.processors.registry import processor_for


class MediaReader:
    """One per lane of an HTTP worker. ``policy`` is for tests; by default it follows the configuration."""

    def __init__(
        self,
        deployment: Deployment,
        metrics: MetricsClient,
        generation: Generation = "v2",
        *,
        policy: AddressPolicy | None = None,
    ) -> None:
        config = deployment.config
        self._config = config
        self._metrics = metrics
        self._generation = generation
        concurrent = generation == "v2"
        self._threads = Threads(f"media-{generation}", config.concurrent_alloc_workers, concurrent=concurrent)
        self._read_all = self._together if concurrent else self._one_by_one
        policy = policy or AddressPolicy(config.allowed_media_domains)
        self._fetcher = Fetcher(policy, timeout_s=config.media_fetch_timeout)
        model, processor = deployment.model, processor_for(deployment.model)
        settings = processor.settings_digest() if processor else b""
        self._keys = ContentKeys(config.mm_hash, seed=deployment.hash_seed, model=model.path, settings=settings)
        self._takes_images = processor is not None

    async def read(self, refs: Sequence[MediaRef], cache_salt: str) -> list[MediaItem]:
        """In the order of ``refs``. Raises MediaError or TooLarge with the image's ``param``."""
        if not refs:
            return []
        if not self._takes_images:
            raise MediaError("this model takes no images", param=refs[0].param)
        started_s = time.monotonic()
        data = await self._read_all(refs, ByteBudget(int(self._config.max_body_mb * 2**20)))
        read_s = time.monotonic()
        items = await self._identify(refs, data, cache_salt)
        self._metrics.add("mm_fetch_seconds", read_s - started_s, self._generation)
        self._metrics.add("mm_hash_seconds", time.monotonic() - read_s, self._generation)
        return items

    async def aclose(self) -> None:
        """Close connections and threads; a thread that still reads ends by itself."""
        await self._fetcher.aclose()
        self._threads.close()

    async def _one_by_one(self, refs: Sequence[MediaRef], budget: ByteBudget) -> list[bytes]:
        return [await self._read_one(ref, budget) for ref in refs]

    async def _read_one(self, ref: MediaRef, budget: ByteBudget) -> bytes:
        if _is_remote(ref):
            return await self._fetch(ref, budget)
        return await self._threads.run(lambda: self._read_local(ref, budget))

    async def _together(self, refs: Sequence[MediaRef], budget: ByteBudget) -> list[bytes]:
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

    async def _identify(self, refs: Sequence[MediaRef], data: Sequence[bytes], cache_salt: str) -> list[MediaItem]:
        def identify(index: int) -> MediaItem:
            ref, content = refs[index], data[index]
            picture = self._header(content, ref.param)
            key = self._keys.of(content, picture, cache_salt)
            return MediaItem(content, picture.width, picture.height, key, ref.param)

        return await self._threads.map(identify, range(len(refs)), [len(one) for one in data])

    def _header(self, content: bytes, param: str) -> Header:
        try:
            return header(content, self._config.max_image_pixels)
        except MmserveError as error:
            error.param = param
            raise


def _scheme(ref: MediaRef) -> str:
    return ref.url[:8].partition(":")[0].lower()


def _is_remote(ref: MediaRef) -> bool:
    return _scheme(ref) in ("http", "https")
