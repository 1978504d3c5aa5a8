"""A tokenizer as reading the model's output needs it: what is text, and what each token spells.

Knows no sequences.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tokenizers import Tokenizer

REPLACEMENT = "\ufffd"
_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")


class Spelling(NamedTuple):
    """One token as text, with U+FFFD for parts of characters, and as bytes; None: it is never shown."""

    text: str
    data: bytes | None


class Vocabulary:
    """One per worker, shared by all sequences."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = {
            id: token.content for id, token in tokenizer.get_added_tokens_decoder().items() if token.special
        }
        self._spellings: dict[tuple[int, bool], Spelling] = {}
        """Kept: an answer that asks for the most likely tokens spells twenty for each of its own."""

    def is_text(self, token_id: int) -> bool:
        """False for special tokens and for ids that the model has but the tokenizer does not."""
        return token_id not in self._special and self._tokenizer.id_to_token(token_id) is not None

    def decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    def spell(self, token_id: int, *, first: bool) -> Spelling:
        """The token by itself: ``first`` of a text (where a leading space may go) or after another one."""
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
    """Of a token that is no whole characters: named by its byte (SentencePiece), or written in GPT-2's alphabet."""
    if named := _BYTE_PIECE.fullmatch(piece):
        return bytes([int(named[1], 16)])
    try:
        return bytes(_BYTES[symbol] for symbol in piece)
    except KeyError:
        return piece.encode()


def _alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte: printable Latin-1 as it is, the rest from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return {chr(byte) if byte in printable else chr(next(others)): byte for byte in range(256)}


_BYTES = _alphabet()
