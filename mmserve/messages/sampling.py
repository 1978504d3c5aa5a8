"""Sampling parameters of one sequence. Stop strings are handled in the HTTP worker."""

from __future__ import annotations

import msgspec


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Validated by the HTTP worker, not again by the engine."""

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    """0: greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0: off."""
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    seed: int = 0
    """Sampling depends only on (seed, position), so that a resumed sequence continues with the same text."""
    stop_token_ids: tuple[int, ...] = ()
    """EOS ids of the model. Masked until min_tokens. Empty with ignore_eos."""
    grammar: str = ""
    """llguidance's JSON or Lark text that the output must fit; empty: none. The grammar decides where the output ends:
    ``min_tokens`` is then 0, and ``stop_token_ids`` holds all EOS ids."""
    logprobs: int | None = None
    """Number of top tokens whose log-probabilities are reported with each sampled token's. None: report nothing."""
