"""The configuration of one server start: the user's Config, and all decisions made before processes start.

Built once by the supervisor, immutable, sent to each child. Facts that only a child can find out (KV blocks) are in
its ready message instead.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from mmserve.checkpoint.spec import ModelSpec
from mmserve.config.config import Config
from mmserve.config.node_options import ranks_of
from mmserve.config.resolved.budgets import Budgets, budgets_of

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1}
FIRST_VIRTUAL_TOKEN = 1 << 32
"""Token ids from here on are virtual ids of image content; therefore prompts are int64."""


Dtype = Literal["float32", "bfloat16", "float16"]
KvDtype = Literal["float32", "bfloat16", "float16", "fp8"]


def activation_dtype(model: ModelSpec, device: Literal["cpu", "cuda"], dtype: Dtype) -> Dtype:
    """Of hidden states and images' embedding rows, for a model served in ``dtype``.

    On a CPU bfloat16 is for weights and inputs of linear layers; only transformers' own classes compute in it alone.
    """
    return "float32" if (device, dtype) == ("cpu", "bfloat16") and model.family != "transformers" else dtype


def embed_row_nbytes(model: ModelSpec, dtype: Dtype) -> int:
    """Bytes of one image token's embedding in the arena. ``dtype``: of activations."""
    streams = 1 if model.vision is None else model.vision.streams
    return streams * model.text.hidden_size * DTYPE_BYTES[dtype]


def kv_dtype(config: Config, dtype: Dtype) -> KvDtype:
    """Of the KV cache of a model served in ``dtype``."""
    return dtype if config.kv_cache_dtype == "auto" else config.kv_cache_dtype


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """Everything fixed for the life of one ``mmserve serve``."""

    config: Config
    model: ModelSpec
    draft: ModelSpec | None = None
    """The draft model (--speculative-model). Rank 0 computes it."""
    served_name: str
    device: Literal["cpu", "cuda"]
    dtype: Dtype
    cpu_threads: int = 1
    """On a CPU: threads of all ranks of this machine together."""
    max_model_len: int
    kv_tokens: int | None
    """Tokens in the KV cache of each rank, which rounds down to whole blocks. None: the rank measures its GPU."""
    arena_nbytes: int
    max_image_rows: int = 0
    """Rows of the image that has the most, as the image processor is set; 0 for a text model."""
    run_dir: str
    hash_seed: int
    """--mm-hash-seed, or random per start, so that content keys of different servers differ."""
    url: str
    version: str
    processor: str = ""
    """The kind of what computes, as far as kinds of it compute other numbers."""
    text_facts: dict[str, str] = {}
    """What decides about the text of an answer, by name, to be compared with other servers; with --cluster-key-file."""

    @property
    def ranks_here(self) -> range:
        """The tensor-parallel ranks of this machine."""
        return ranks_of(self.config, self.config.node_rank)

    @property
    def activation_dtype(self) -> Dtype:
        return activation_dtype(self.model, self.device, self.dtype)

    @property
    def overlaps(self) -> bool:
        """The next step is planned, and on a GPU launched, while one is computed."""
        if self.config.overlap_scheduling is not None:
            return self.config.overlap_scheduling
        speculates = self.config.speculative != "none" or self.config.speculative_model is not None
        return self.device == "cuda" and not speculates

    @property
    def kv_dtype(self) -> KvDtype:
        """Of the KV cache."""
        return kv_dtype(self.config, self.dtype)

    @property
    def embed_row_nbytes(self) -> int:
        return embed_row_nbytes(self.model, self.activation_dtype)

    @property
    def budgets(self) -> Budgets:
        """Byte limits for images and request bodies."""
        return budgets_of(self.config, self.arena_nbytes)
