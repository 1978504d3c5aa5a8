"""Sampling parameters of one sequence. Stop strings are handled in the HTTP worker."""

from __future__ import annotations

import msgspec

MAX_STOP_TOKEN_IDS = 64
MAX_ALLOWED_TOKEN_IDS = 4096
MAX_BAD_WORDS = 512
"""Sequences of token ids. A word usually has two: with and without a space before it."""
MAX_BAD_WORD_TOKENS = 64
"""In one sequence."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Validated by the HTTP worker, not again by the engine."""

    max_tokens: int
    """0: the sequence ends after its prompt, without a token."""
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
    eos_token_ids: tuple[int, ...] = ()
    """The model's own stop tokens. Empty with ignore_eos."""
    stop_token_ids: tuple[int, ...] = ()
    """The client's stop tokens, at most MAX_STOP_TOKEN_IDS."""
    allowed_token_ids: tuple[int, ...] = ()
    """Only these tokens can be sampled, at most MAX_ALLOWED_TOKEN_IDS. Empty: all."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Sequences of 1 to MAX_BAD_WORD_TOKENS token ids that the output must not contain, at most MAX_BAD_WORDS."""
    grammar: str = ""
    """llguidance's JSON or Lark text that the output must fit; empty: none. The grammar decides where the output ends:
    ``min_tokens`` is then 0, and ``eos_token_ids`` holds all EOS ids."""
    logprobs: int | None = None
    """Number of top tokens whose log-probabilities are reported with each sampled token's. None: report nothing."""
    prompt_logprobs: int | None = None
    """The same for the tokens of the prompt, but the first, which nothing comes before."""

    @property
    def ending_token_ids(self) -> tuple[int, ...]:
        """Tokens that end the sequence, from the min_tokens-th output token on. They are banned before."""
        return self.eos_token_ids + self.stop_token_ids
