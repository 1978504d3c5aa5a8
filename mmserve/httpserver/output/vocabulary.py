"""The tokenizer for decoding output: which ids are text, and the text and bytes of each token."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tokenizers import Tokenizer

REPLACEMENT = "\ufffd"
_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")


class Spelling(NamedTuple):
    """One token as text (U+FFFD for partial characters) and as bytes (None: the token is never shown)."""

    text: str
    data: bytes | None


class Marker(NamedTuple):
    """A special token that is part of an answer's format, such as the one before a tool call."""

    name: str


class Vocabulary:
    """One per worker, shared by all sequences."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = {
            id: token.content for id, token in tokenizer.get_added_tokens_decoder().items() if token.special
        }
        self._spellings: dict[tuple[int, bool], Spelling] = {}
        """Cache: a request for top logprobs needs up to twenty spellings for each output token."""

    @property
    def added_tokens(self) -> dict[str, int]:
        """Ids of all added tokens, special or not, by their contents."""
        return {token.content: id for id, token in self._tokenizer.get_added_tokens_decoder().items()}

    @property
    def special_names(self) -> frozenset[str]:
        """Names of the special tokens."""
        return frozenset(self._special.values())

    def markers(self, names: Iterable[str]) -> dict[int, Marker]:
        """The special tokens with these names, by their ids. A name that is no special token has none."""
        wanted = frozenset(names)
        return {id: Marker(name) for id, name in self._special.items() if name in wanted}

    def is_text(self, token_id: int, *, special: bool = False) -> bool:
        """False for ids that only the model has, and for special tokens unless ``special``."""
        return (special or token_id not in self._special) and self._tokenizer.id_to_token(token_id) is not None

    def piece(self, token_id: int) -> str | None:
        """The token as the vocabulary writes it; None for ids that only the model has."""
        piece: str | None = self._tokenizer.id_to_token(token_id)
        return piece

    def decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    def spell(self, token_id: int, *, first: bool) -> Spelling:
        """The token by itself, as the ``first`` of a text (its leading space may be dropped) or after another token."""
        if (found := self._spellings.get((token_id, first))) is None:
            found = self._spellings[token_id, first] = self._spell(token_id, first)
        return found

    def _spell(self, token_id: int, first: bool) -> Spelling:
        piece = self._tokenizer.id_to_token(token_id)
        if piece is None or token_id in self._special:
            return Spelling(self._special.get(token_id, f"token_id:{token_id}"), None)
        alone = self.decode([token_id])
        text = alone if first else self.decode([token_id, token_id])[len(alone) :]
        data = _bytes_of(piece) if REPLACEMENT in text else text.encode()
        return Spelling(data.decode(errors="replace"), data)


def _bytes_of(piece: str) -> bytes:
    """Bytes of a token with partial characters: named by its byte (SentencePiece), or in GPT-2's byte alphabet."""
    if match := _BYTE_PIECE.fullmatch(piece):
        return bytes([int(match[1], 16)])
    try:
        return bytes(_BYTES[symbol] for symbol in piece)
    except KeyError:
        return piece.encode()


def _alphabet() -> dict[str, int]:
    """GPT-2's printable character for each byte: printable Latin-1 as it is, the rest from U+0100 on. Inverted."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return {chr(byte) if byte in printable else chr(next(others)): byte for byte in range(256)}


_BYTES = _alphabet()
