"""Reads the images of one request: compressed bytes, width and height from the header, content key.

Pixels are not decoded here. Blocking work runs in threads; http(s) fetches run on the event loop. The images of a
request are read concurrently (v2) or one after another (v1).
"""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from mmserve.config.resolved.deployment import Deployment
from mmserve.httpserver import stage_times
from mmserve.httpserver.call import AllocVersion, MediaItem, MediaRef
from mmserve.httpserver.limits.media_budgets import RequestByteLimit
from mmserve.httpserver.media.addresses import AddressPolicy
from mmserve.httpserver.media.content_key import ContentKeys
from mmserve.httpserver.media.fetch import Fetcher
from mmserve.httpserver.media.local import read_data_url, read_file_url
from mmserve.messages.media import DEFAULT_PROCESSING, Processing
from mmserve.monitoring.metrics.client import MetricsClient
from mmserve.processors.image_files.picture import Header, header
from mmserve.processors.image_processors import image_processors_for
from mmserve.runtime.byte_budget import MIB
from mmserve.runtime.errors import MediaError, MmserveError
from mmserve.runtime.worker_threads import MIN_BATCH_NBYTES, WorkerThreads

A = TypeVar("A")
_MAX_KEPT = 64
"""ContentKeys, by how images are processed."""
KeyOf = Callable[[bytes, Header], bytes]
"""An image's bytes and header -> its content key."""


class _ReadItem(NamedTuple):
    """One image, with the seconds spent on its bytes and on its header and key."""

    item: MediaItem
    read_s: float
    hash_s: float


class MediaReader:
    """One per allocation path of an HTTP worker. ``policy`` is for tests; the default follows the configuration."""

    def __init__(
        self,
        deployment: Deployment,
        metrics: MetricsClient,
        alloc_version: AllocVersion = "v2",
        *,
        policy: AddressPolicy | None = None,
    ) -> None:
        config = deployment.config
        self._config = config
        self._metrics = metrics
        self._alloc_version = alloc_version
        concurrent = alloc_version == "v2"
        self._threads = WorkerThreads(f"media-{alloc_version}", config.concurrent_alloc_workers, concurrent=concurrent)
        self._request_permits = asyncio.Semaphore(_max_requests(config.concurrent_alloc_workers))
        self._read_all = self._read_concurrently if concurrent else self._read_one_by_one
        policy = policy or AddressPolicy(config.allowed_media_domains)
        self._fetcher = Fetcher(policy, timeout_s=config.media_fetch_timeout)
        model, processors = deployment.model, image_processors_for(deployment.model)
        self._takes_images = processors is not None

        def keys_of(processing: Processing) -> ContentKeys:
            settings = processors.of(processing).settings_digest() if processors else b""
            return ContentKeys(config.mm_hash, seed=deployment.hash_seed, model=model.path, settings=settings)

        self._keys_of = functools.lru_cache(_MAX_KEPT)(keys_of)
        """Of images that are processed so."""

    async def read(
        self, refs: Sequence[MediaRef], cache_salt: str, processing: Processing = DEFAULT_PROCESSING
    ) -> list[MediaItem]:
        """The images, in the order of ``refs``.

        Raises MediaError or TooLarge with the image's ``param``, or a group of them if several images fail at once.
        """
        if not refs:
            return []
        if not self._takes_images:
            raise MediaError("this model takes no images", param=refs[0].param)
        key_of = functools.partial(self._keys_of(processing).of, cache_salt=cache_salt)
        results = await self._read_all(refs, RequestByteLimit(int(self._config.max_body_mb * MIB)), key_of)
        read_s, hash_s = sum(result.read_s for result in results), sum(result.hash_s for result in results)
        stage_times.record("fetch", read_s)
        stage_times.record("hash", hash_s)
        self._metrics.add("mm_fetch_seconds", read_s, self._alloc_version)
        self._metrics.add("mm_hash_seconds", hash_s, self._alloc_version)
        return [msgspec.structs.replace(result.item, processing=processing) for result in results]

    async def aclose(self) -> None:
        """Close connections and threads. A thread that still reads ends when its read does."""
        await self._fetcher.aclose()
        self._threads.close()

    async def _read_one_by_one(
        self, refs: Sequence[MediaRef], budget: RequestByteLimit, key_of: KeyOf
    ) -> list[_ReadItem]:
        results = []
        for ref in refs:
            if _is_remote(ref):
                results.append(await self._read_remote(ref, budget, key_of))
            else:
                results += await self._threads.map(
                    lambda ref: self._read_local(ref, budget, key_of), [ref], [ref.nbytes]
                )
        return results

    async def _read_concurrently(
        self, refs: Sequence[MediaRef], budget: RequestByteLimit, key_of: KeyOf
    ) -> list[_ReadItem]:
        local = [index for index, ref in enumerate(refs) if not _is_remote(ref)]
        remote = [index for index, ref in enumerate(refs) if _is_remote(ref)]
        sizes = [_work_nbytes(refs[index]) for index in local]
        try:
            async with asyncio.TaskGroup() as group:
                fetches = [group.create_task(self._read_remote(refs[index], budget, key_of)) for index in remote]
                reads = group.create_task(
                    self._map(lambda index: self._read_local(refs[index], budget, key_of), local, sizes)
                )
        except BaseExceptionGroup as failures:
            if len(failures.exceptions) > 1:
                raise
            raise failures.exceptions[0] from None
        results = dict(zip(local, reads.result(), strict=True))
        results |= {index: fetch.result() for index, fetch in zip(remote, fetches, strict=True)}
        return [results[index] for index in range(len(refs))]

    async def _read_remote(self, ref: MediaRef, budget: RequestByteLimit, key_of: KeyOf) -> _ReadItem:
        started_s = time.monotonic()
        content = await self._fetch(ref, budget)
        read_s = time.monotonic() - started_s
        (result,) = await self._map(
            lambda content: self._identify(ref, content, key_of, read_s), [content], [len(content)]
        )
        return result

    async def _map(self, work: Callable[[A], _ReadItem], jobs: Sequence[A], nbytes: Sequence[int]) -> list[_ReadItem]:
        """``work`` for each job in this path's threads. Requests take them first come, first served."""
        if not jobs:
            return []
        async with self._request_permits:
            return await self._threads.map(work, jobs, nbytes)

    async def _fetch(self, ref: MediaRef, budget: RequestByteLimit) -> bytes:
        try:
            return await self._fetcher.get(ref.url, budget)
        except MmserveError as error:
            error.param = ref.param
            raise

    def _local_bytes(self, ref: MediaRef, budget: RequestByteLimit) -> bytes:
        try:
            match ref.scheme:
                case "data":
                    return read_data_url(ref, budget)
                case "file":
                    return read_file_url(ref.url, self._config.allowed_local_media_path, budget)
            raise MediaError("an image's URL must begin with data:, http:, https: or file:")
        except MmserveError as error:
            error.param = ref.param
            raise

    def _read_local(self, ref: MediaRef, budget: RequestByteLimit, key_of: KeyOf) -> _ReadItem:
        started_s = time.monotonic()
        content = self._local_bytes(ref, budget)
        return self._identify(ref, content, key_of, time.monotonic() - started_s)

    def _identify(self, ref: MediaRef, content: bytes, key_of: KeyOf, read_s: float) -> _ReadItem:
        started_s = time.monotonic()
        picture = self._header(content, ref.param)
        key = key_of(content, picture)
        item = MediaItem(content, picture.width, picture.height, key, ref.param, loading_nbytes=picture.loading_nbytes)
        return _ReadItem(item, read_s, time.monotonic() - started_s)

    def _header(self, content: bytes, param: str) -> Header:
        try:
            return header(content, self._config.max_image_pixels)
        except MmserveError as error:
            error.param = param
            raise


def _max_requests(workers: int) -> int:
    """How many requests may use the threads at once. More would not be faster: they would take cores from the event
    loop and compete for the GIL."""
    return min(workers, max(1, len(os.sched_getaffinity(0)) // 2))


def _work_nbytes(ref: MediaRef) -> int:
    """Estimated bytes to process. The size of a file is unknown until it is opened, and opening may wait for a disk, so
    each file counts as enough work for a thread of its own."""
    return max(ref.nbytes, MIN_BATCH_NBYTES) if ref.scheme == "file" else ref.nbytes


def _is_remote(ref: MediaRef) -> bool:
    return ref.scheme in ("http", "https")
