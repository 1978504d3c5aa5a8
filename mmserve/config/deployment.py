"""One server start as every process sees it: the user's Config plus all that was decided before processes start.

Made once by the supervisor, frozen, handed to each child. What only a child can find out (KV blocks) comes back in its
ready message instead.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from mmserve.checkpoint.spec import ModelSpec
from mmserve.config.config import Config
from mmserve.runtime.byte_budget import MIB

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
FIRST_VIRTUAL_TOKEN = 1 << 32
"""Token ids from here on stand for image content, never for text; prompts are int64 for their sake."""
_SHORTEST_WAITING_NBYTES = 64 * 1024
"""However small the budget, less than this is not worth waiting for."""
_BODY_BUDGET_MB, _FETCH_BUDGET_MB = 512.0, 256.0


class Budgets(msgspec.Struct, frozen=True, kw_only=True):
    """The most bytes of each form that an image takes on its way, all requests together."""

    body_nbytes: int
    """Bodies, and images made of them, in one HTTP worker: its share. Short bodies may be as much again."""
    short_body_nbytes: int
    """A body of this size, which may well be text, never waits. As many as may be in flight fill ``body_nbytes``."""
    fetch_nbytes: int
    """Fetched images in one HTTP worker: its share."""
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
    """On a CPU, of all ranks together."""
    max_model_len: int
    kv_tokens: int | None
    """Tokens in the KV cache of each rank, which rounds down to whole blocks. None: the rank measures its GPU."""
    arena_nbytes: int
    run_dir: str
    hash_seed: int
    """Random per start: content keys of one server mean nothing to another."""
    url: str
    version: str

    @property
    def embed_row_nbytes(self) -> int:
        """Bytes of one image token's embedding in the arena."""
        return self.model.text.hidden_size * DTYPE_BYTES[self.dtype]

    @property
    def budgets(self) -> Budgets:
        """Every form's budget; what the user did not say follows from the other options."""
        config = self.config
        workers, body_mb = config.http_workers, config.max_body_mb
        body_mb_in_all = config.body_budget_mb or max(_BODY_BUDGET_MB, 2 * body_mb * workers)
        fetch_mb_in_all = config.fetch_budget_mb or max(_FETCH_BUDGET_MB, body_mb * workers)
        body_nbytes = int(body_mb_in_all * MIB) // workers
        return Budgets(
            body_nbytes=body_nbytes,
            short_body_nbytes=max(_SHORTEST_WAITING_NBYTES, body_nbytes // config.max_queued_requests),
            fetch_nbytes=int(fetch_mb_in_all * MIB) // workers,
            data_nbytes=int(config.data_budget_mb * MIB) if config.data_budget_mb else self.arena_nbytes // 2,
            pixel_nbytes=int(config.pixel_budget_mb * MIB),
            embed_nbytes=int(config.embed_budget_mb * MIB) if config.embed_budget_mb else self.arena_nbytes,
        )
