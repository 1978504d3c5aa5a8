"""What options are made of: the types of those with few values, limits, and the note that a field carries."""

from __future__ import annotations

from typing import Literal

from msgspec import Meta

Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "bfloat16", "float16", "float32"]
KvDtype = Literal["auto", "bfloat16", "float16", "float32", "fp8"]
Quantization = Literal["none", "int8", "int4", "fp8"]
ModelImpl = Literal["auto", "mmserve", "transformers"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]
AttentionChoice = Literal["auto", "torch", "triton", "flashinfer"]
RankSums = Literal["auto", "nccl"]
KernelWays = Literal["auto", "kept", "default"]
KernelLevel = Literal["auto", "amx", "avx512_bf16", "avx512", "avx2", "neon_bf16", "neon"]
Speculative = Literal["none", "ngram"]
MmHash = Literal["xxh3", "blake3", "sha256"]
EventFormat = Literal["map", "array"]

MAX_SEED = 2**63 - 1
MAX_GB = 10**6
MAX_MB = 10**9
"""Larger values are typing errors, and would overflow the integers of messages."""


def field(group: str, help: str, *, ge: float | None = None, gt: float | None = None, le: float | None = None) -> Meta:
    """Help line, help group and range of an option."""
    limits = {name: value for name, value in (("ge", ge), ("gt", gt), ("le", le)) if value is not None}
    return Meta(description=help, extra={"group": group}, **limits)  # type: ignore[call-overload, no-any-return]
