"""Settings of the pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """``kv_precision``: of the KV cache, as OpenVINO names it; empty: its default. ``step_tokens``: at most, in one
    step."""

    gguf: Path
    checkpoint: Path
    sequences: int
    kv_cache_gb: int = 1
    kv_precision: str = ""
    step_tokens: int = 1024

    @property
    def tokenizer(self) -> Path:
        return self.checkpoint / "tokenizer.json"
