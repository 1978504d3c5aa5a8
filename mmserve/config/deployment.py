"""The configuration of one server start: the user's Config, and all decisions made before processes start.

Built once by the supervisor, immutable, sent to each child. Facts that only a child can find out (KV blocks) are in
its ready message instead.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from mmserve.checkpoint.spec import ModelSpec
from mmserve.config.config import Config
from mmserve.runtime.byte_budget import MIB

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
FIRST_VIRTUAL_TOKEN = 1 << 32
"""Token ids from here on are virtual ids of image content; therefore prompts are int64."""
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


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """Everything fixed for the life of one ``mmserve serve``."""

    config: Config
    model: ModelSpec
    served_name: str
    device: Literal["cpu", "cuda"]
    dtype: Literal["float32", "bfloat16", "float16"]
    cpu_threads: int = 1
    """On a CPU: threads of all ranks together."""
    max_model_len: int
    kv_tokens: int | None
    """Tokens in the KV cache of each rank, which rounds down to whole blocks. None: the rank measures its GPU."""
    arena_nbytes: int
    run_dir: str
    hash_seed: int
    """Random per start, so that content keys of different servers differ."""
    url: str
    version: str

    @property
    def embed_row_nbytes(self) -> int:
        """Bytes of one image token's embedding in the arena."""
        return self.model.text.hidden_size * DTYPE_BYTES[self.dtype]

    @property
    def budgets(self) -> Budgets:
        """The byte limits; defaults depend on the other options."""
        config = self.config
        workers, body_mb = config.http_workers, config.max_body_mb
        body_mb_in_all = config.body_budget_mb or max(_BODY_BUDGET_MB, 2 * body_mb * workers)
        fetch_mb_in_all = config.fetch_budget_mb or max(_FETCH_BUDGET_MB, body_mb * workers)
        body_nbytes = int(body_mb_in_all * MIB) // workers
        return Budgets(
            body_nbytes=body_nbytes,
            short_body_nbytes=max(_MIN_WAITING_NBYTES, body_nbytes // config.max_queued_requests),
            fetch_nbytes=int(fetch_mb_in_all * MIB) // workers,
            data_nbytes=int(config.data_budget_mb * MIB) if config.data_budget_mb else self.arena_nbytes // 2,
            pixel_nbytes=int(config.pixel_budget_mb * MIB),
            embed_nbytes=int(config.embed_budget_mb * MIB) if config.embed_budget_mb else self.arena_nbytes,
        )
