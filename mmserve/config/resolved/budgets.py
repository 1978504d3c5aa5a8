"""Byte limits for images and request bodies: their defaults, and what follows from other options. Pure."""

from __future__ import annotations

import msgspec

from mmserve.config.config import Config
from mmserve.runtime.byte_budget import MIB

_MIN_WAITING_NBYTES = 64 * 1024
"""A body below this size never waits, however small the budget."""
_BODY_BUDGET_MB, _FETCH_BUDGET_MB = 512.0, 256.0


class Budgets(msgspec.Struct, frozen=True, kw_only=True):
    """Byte limits for each form of an image, over all requests."""

    body_nbytes: int
    """Request bodies and images decoded from them, per HTTP worker. Short bodies may take as much again."""
    short_body_nbytes: int
    """A body up to this size never waits. The largest number in flight of them fills ``body_nbytes``."""
    fetch_nbytes: int
    """Fetched images, per HTTP worker."""
    data_nbytes: int
    pixel_nbytes: int
    embed_nbytes: int


def budgets_of(config: Config, arena_nbytes: int) -> Budgets:
    """The limits of one server; defaults depend on the other options."""
    workers, body_mb = config.http_workers, config.max_body_mb
    body_mb_in_all = config.body_budget_mb or max(_BODY_BUDGET_MB, 2 * body_mb * workers)
    fetch_mb_in_all = config.fetch_budget_mb or max(_FETCH_BUDGET_MB, body_mb * workers)
    body_nbytes = int(body_mb_in_all * MIB) // workers
    return Budgets(
        body_nbytes=body_nbytes,
        short_body_nbytes=max(_MIN_WAITING_NBYTES, body_nbytes // config.max_queued_requests),
        fetch_nbytes=int(fetch_mb_in_all * MIB) // workers,
        data_nbytes=int(config.data_budget_mb * MIB) if config.data_budget_mb else arena_nbytes // 2,
        pixel_nbytes=int(config.pixel_budget_mb * MIB),
        embed_nbytes=int(config.embed_budget_mb * MIB) if config.embed_budget_mb else arena_nbytes,
    )
