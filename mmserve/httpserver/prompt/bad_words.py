"""Texts that an answer must not contain, as sequences of tokens. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mmserve.messages.sampling import MAX_BAD_WORD_TOKENS
from mmserve.runtime.errors import InvalidRequest

MAX_TOKENS = 4096
"""Of all sequences of one request. Each of its choices takes them to the engine."""


def bad_word_ids(encode: Callable[[str], list[int]], words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """The tokens of each word with and without a space before it. ``encode``: of a text that follows other text.

    Only these sequences are banned, not other sequences that spell the same text. Raises InvalidRequest, which names
    ``bad_words``, for a word without tokens or with too many.
    """
    found: dict[tuple[int, ...], None] = {}
    for index, word in enumerate(words):
        for text in (word.lstrip(" "), " " + word.lstrip(" ")):
            ids = tuple(encode(text))
            if len(ids) > MAX_BAD_WORD_TOKENS:
                raise InvalidRequest(
                    f"a bad word has {len(ids)} tokens, more than {MAX_BAD_WORD_TOKENS}", param=f"bad_words[{index}]"
                )
            if not word.strip() or not ids:
                raise InvalidRequest("a bad word must be a text", param=f"bad_words[{index}]")
            found[ids] = None
    if sum(map(len, found)) > MAX_TOKENS:
        raise InvalidRequest(f"the bad words have more than {MAX_TOKENS} tokens in all", param="bad_words")
    return tuple(found)
