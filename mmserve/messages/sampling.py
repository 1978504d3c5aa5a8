"""Sampling parameters of one sequence as the engine needs them (stop strings live in the HTTP worker)."""

from __future__ import annotations

import msgspec


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Validated by the HTTP worker; the engine trusts it."""

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 is off."""
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    seed: int = 0
    """Sampling is a function of (seed, position), so a resumed sequence continues with the same text."""
    stop_token_ids: tuple[int, ...] = ()
    """The model's eos ids and the like; masked until min_tokens. Empty under ignore_eos."""
    logprobs: int | None = None
    """Report the log-probability of each token and of so many most likely ones (messages/logprobs). None: of none."""
