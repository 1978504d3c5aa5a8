"""A checkpoint's tokenizer: tokenizer.json as it is, and the special tokens that tokenizer_config.json names.

Encodes text of which some characters came from users: whatever they type, it never becomes a control token.
Knows no template and no messages.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import tokenizers

from mmserve.checkpoint.load import read_json
from mmserve.runtime.errors import StartupError

Interval = tuple[int, int]
"""Characters [start, end) of a text."""


@dataclass
class _Stretch:
    """Tokens since the last control token, from character ``start`` on."""

    start: int = 0
    ids: list[int] = field(default_factory=list)
    forged: bool = False

    def add(self, id: int, *, forged: bool) -> None:
        self.ids.append(id)
        self.forged |= forged


class ChatTokenizer:
    """``raw`` is the tokenizers library's object, for decoding; ``special_tokens`` are named as transformers does."""

    def __init__(self, checkpoint: Path, template: str = "", *, placeholder: int | None = None) -> None:
        """Added tokens that ``template`` writes are control tokens, too, and so is ``placeholder``.

        Raises StartupError.
        """
        file = checkpoint / "tokenizer.json"
        definition = read_json(file)
        if definition is None:
            raise StartupError(f"{checkpoint} holds no tokenizer.json; mmserve reads no other tokenizer format")
        self._anchor = f"\ue000{secrets.token_hex(8)}\ue001"
        try:
            self.raw = _unlimited(definition)
            self._plain = _unlimited({**definition, "added_tokens": []})
            self._plain.add_special_tokens([self._anchor])
        except Exception as error:  # noqa: BLE001 - the library raises bare Exception
            raise StartupError(f"cannot read {file}: {error}") from None
        self.special_tokens = _special_tokens(read_json(checkpoint / "tokenizer_config.json") or {})
        control = _control_tokens(self.raw, self.special_tokens, template, placeholder)
        self.control = frozenset(control)
        self._edges = {char for content in control.values() for char in content.strip()[:1] + content.strip()[-1:]}
        self._frame = self._learn_frame()
        self.longest_token = max(map(len, self.raw.get_vocab()), default=1)
        """Characters: a text of n characters has at least n / longest_token tokens."""

    def encode(self, text: str) -> list[int]:
        """The ids transformers gives for ``text``, control tokens in it included, none added."""
        return list(self.raw.encode(text, add_special_tokens=False).ids)

    def framed(self, ids: list[int]) -> list[int]:
        """What ``add_special_tokens=True`` makes of a text's ids: usually the bos token in front."""
        before, after = self._frame
        return [*before, *ids, *after]

    def may_forge(self, text: str) -> bool:
        """A quick look that spares most texts a closer one. False: no control token begins or ends in ``text``."""
        return not (text.isascii() and self._edges.isdisjoint(text))

    def encode_guarded(self, text: str, user: Sequence[Interval]) -> list[int]:
        """Like ``encode``, but a control token that touches characters of ``user`` becomes ordinary text.

        Between two control tokens a tokenizer sees nothing of what lies beyond them. So the stretch that holds a
        forged one is encoded again, as if the vocabulary had no added tokens, and all others stay as they are.
        """
        encoding = self.raw.encode(text, add_special_tokens=False)
        ids: list[int] = []
        stretch = _Stretch()
        for id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if id not in self.control or _touches(user, start, end):
                stretch.add(id, forged=id in self.control)
                continue
            ids += [*self._settle(stretch, text[stretch.start : start]), id]
            stretch = _Stretch(start=end)
        return ids + self._settle(stretch, text[stretch.start :])

    def controls_in(self, ids: Iterable[int]) -> list[int]:
        """The control tokens of a prompt, in order."""
        return [id for id in ids if id in self.control]

    def _settle(self, stretch: _Stretch, text: str) -> list[int]:
        return self._encode_plain(text, first=stretch.start == 0) if stretch.forged else stretch.ids

    def _encode_plain(self, text: str, *, first: bool) -> list[int]:
        """No added tokens. A vocabulary that spells one out all the same gets the text character by character."""
        ids = self._plain_ids(text, first=first)
        if self.control.isdisjoint(ids):
            return ids
        letters = [id for char in text for id in self._plain_ids(char, first=False)]
        return [id for id in letters if id not in self.control]

    def _plain_ids(self, text: str, *, first: bool) -> list[int]:
        if first:
            return list(self._plain.encode(text, add_special_tokens=False).ids)
        # SentencePiece tokenizers treat a text's beginning in their own way; the anchor stands for what came before.
        return list(self._plain.encode(self._anchor + text, add_special_tokens=False).ids[1:])

    def _learn_frame(self) -> tuple[list[int], list[int]]:
        bare = self.encode("a")
        framed = list(self.raw.encode("a", add_special_tokens=True).ids)
        starts = [at for at in range(len(framed) - len(bare) + 1) if framed[at : at + len(bare)] == bare]
        at = starts[0] if starts else 0
        return framed[:at], framed[at + len(bare) :]


def _unlimited(definition: dict[str, Any]) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer.from_str(msgspec.json.encode(definition).decode())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """``bos_token`` and the like: the names under which templates know them."""
    extra = config.get("extra_special_tokens")
    named = {**config, **extra} if isinstance(extra, dict) else config
    texts = {name: value.get("content") if isinstance(value, dict) else value for name, value in named.items()}
    return {name: text for name, text in texts.items() if name.endswith("_token") and isinstance(text, str)}


def _control_tokens(
    tokenizer: tokenizers.Tokenizer, named: dict[str, str], template: str, placeholder: int | None
) -> dict[int, str]:
    """Id -> text of what users must not write: special tokens, and added ones that the template writes itself.

    Not among them: blank tokens (a newline, runs of spaces), and the token a model gives to unknown characters.
    """
    unknown = getattr(tokenizer.model, "unk_token", None)
    others = {text for name, text in named.items() if name != "unk_token"}
    return {
        id: token.content
        for id, token in tokenizer.get_added_tokens_decoder().items()
        if token.content.strip()
        and (token.special or id == placeholder or token.content in others or token.content in template)
        and (token.content != unknown or token.content in others)
    }


def _touches(user: Sequence[Interval], start: int, end: int) -> bool:
    return any(first < end and start < last for first, last in user)
