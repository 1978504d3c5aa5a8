"""A checkpoint's tokenizer: what tokenizer.json says, and the special tokens named in tokenizer_config.json.

Encodes text that contains user input so that the user input never becomes a control token.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import tokenizers

from mmserve.checkpoint.config.tokenizer_json import no_tokenizer, tokenizer_json
from mmserve.checkpoint.files import read_json
from mmserve.runtime.errors import StartupError

Interval = tuple[int, int]
"""Characters [start, end) of a text."""


@dataclass
class _Segment:
    """Tokens since the last control token, from character ``start`` on."""

    start: int = 0
    ids: list[int] = field(default_factory=list)
    forged: bool = False

    def add(self, id: int, *, forged: bool) -> None:
        self.ids.append(id)
        self.forged |= forged


class ChatTokenizer:
    """``raw`` is the tokenizers library's object, for decoding. ``special_tokens``: by the names transformers uses."""

    def __init__(self, checkpoint: Path, template: str = "", *, image_texts: Sequence[str] = ()) -> None:
        """Added tokens that ``template`` contains are control tokens too, and so are those among ``image_texts``, which
        stand for images. Raises StartupError.
        """
        definition = tokenizer_json(checkpoint)
        if definition is None:
            raise no_tokenizer(checkpoint)
        self._anchor = f"\ue000{secrets.token_hex(8)}\ue001"
        try:
            self.raw = _load(definition)
            self._plain = _load({**definition, "added_tokens": []})
            self._plain.add_special_tokens([self._anchor])
        except Exception as error:  # noqa: BLE001 - the library raises bare Exception
            raise StartupError(f"cannot read the tokenizer of {checkpoint}: {error}") from None
        self.special_tokens = _special_tokens(read_json(checkpoint / "tokenizer_config.json") or {})
        control = _control_tokens(self.raw, self.special_tokens, template, image_texts)
        self.control = frozenset(control)
        contents = {*control.values(), *image_texts}
        self._edge_chars = {char for content in contents for char in content.strip()[:1] + content.strip()[-1:]}
        self._contents = "\0".join(content.lower() for content in contents)
        self._longest_control = max(map(len, contents), default=0)
        self._special_around = self._find_special_around()
        self.longest_token = max(map(len, self.raw.get_vocab()), default=1)
        """Characters: a text of n characters has at least n / longest_token tokens."""
        self.largest_id = max(self.raw.get_vocab().values(), default=-1)

    def encode(self, text: str) -> list[int]:
        """The ids of transformers with ``add_special_tokens=False``; control tokens in ``text`` are recognised."""
        return _fast_ids(self.raw, text)

    def encode_within(self, text: str) -> list[int]:
        """The ids of ``text`` where it follows other text. No control token in it is recognised.

        Found behind a line break: some tokenizers put a space before whatever follows a special token.
        """
        before, ids = self._plain_ids("\n", first=True), self._plain_ids("\n" + text, first=True)
        is_apart = ids[: len(before)] == before and self.control.isdisjoint(ids)
        return ids[len(before) :] if is_apart else self._encode_plain(text, first=False)

    def with_special_tokens(self, ids: list[int]) -> list[int]:
        """Adds what ``add_special_tokens=True`` adds: usually the bos token in front."""
        before, after = self._special_around
        return [*before, *ids, *after]

    def may_forge(self, text: str) -> bool:
        """Fast check. False if no control token can start or end in ``text``, or contain it, as for most texts.

        A template may write ``<{{ name }}>``, so that the name ``image`` becomes a placeholder.
        """
        if not text.isascii() or any(char in text for char in self._edge_chars):
            return True
        body = text.strip()
        return 0 < len(body) <= self._longest_control and body.lower() in self._contents

    def encode_guarded(self, text: str, user: Sequence[Interval]) -> list[int]:
        """Like ``encode``, but a control token that overlaps characters of ``user`` becomes ordinary text.

        Tokenizers encode the text between two control tokens independently. So only the segment with a forged control
        token is encoded again, without added tokens; the other segments keep their ids.
        """
        encoding = self.raw.encode(text, add_special_tokens=False)
        ids: list[int] = []
        segment = _Segment()
        for id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if id not in self.control or _overlaps(user, start, end):
                segment.add(id, forged=id in self.control)
                continue
            ids += [*self._segment_ids(segment, text[segment.start : start]), id]
            segment = _Segment(start=end)
        return ids + self._segment_ids(segment, text[segment.start :])

    def controls_in(self, ids: Iterable[int]) -> list[int]:
        """The control tokens of a prompt, in order."""
        return [id for id in ids if id in self.control]

    def _segment_ids(self, segment: _Segment, text: str) -> list[int]:
        return self._encode_plain(text, first=segment.start == 0) if segment.forged else segment.ids

    def _encode_plain(self, text: str, *, first: bool) -> list[int]:
        """Encode without added tokens. If the plain vocabulary itself has a control token, encode by character."""
        ids = self._plain_ids(text, first=first)
        if self.control.isdisjoint(ids):
            return ids
        char_ids = [id for char in text for id in self._plain_ids(char, first=False)]
        return [id for id in char_ids if id not in self.control]

    def _plain_ids(self, text: str, *, first: bool) -> list[int]:
        if first:
            return _fast_ids(self._plain, text)
        # SentencePiece treats the start of a text specially; the anchor token stands for the text before it.
        return _fast_ids(self._plain, self._anchor + text)[1:]

    def _find_special_around(self) -> tuple[list[int], list[int]]:
        bare = self.encode("a")
        framed = list(self.raw.encode("a", add_special_tokens=True).ids)
        starts = [at for at in range(len(framed) - len(bare) + 1) if framed[at : at + len(bare)] == bare]
        at = starts[0] if starts else 0
        return framed[:at], framed[at + len(bare) :]


def _fast_ids(tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
    """Without special tokens. The library's ``encode`` also finds the place of each token, and so takes half as long
    again."""
    ids: list[int] = tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
    return ids


def _load(definition: dict[str, Any]) -> tokenizers.Tokenizer:
    """Without truncation and padding."""
    tokenizer = tokenizers.Tokenizer.from_str(msgspec.json.encode(definition).decode())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """``bos_token`` and others, by the names that templates use."""
    extra = config.get("extra_special_tokens")
    named = {**config, **extra} if isinstance(extra, dict) else config
    texts = {name: value.get("content") if isinstance(value, dict) else value for name, value in named.items()}
    return {name: text for name, text in texts.items() if name.endswith("_token") and isinstance(text, str)}


def _control_tokens(
    tokenizer: tokenizers.Tokenizer, named: dict[str, str], template: str, image_texts: Sequence[str]
) -> dict[int, str]:
    """Id -> text of tokens that users must not write: special tokens, and added tokens that the template contains.

    Whitespace tokens and the token for unknown characters are excluded.
    """
    unknown = getattr(tokenizer.model, "unk_token", None)
    others = {text for name, text in named.items() if name != "unk_token"}
    return {
        id: token.content
        for id, token in tokenizer.get_added_tokens_decoder().items()
        if token.content.strip()
        and (token.special or token.content in image_texts or token.content in others or token.content in template)
        and (token.content != unknown or token.content in others)
    }


def _overlaps(user: Sequence[Interval], start: int, end: int) -> bool:
    return any(first < end and start < last for first, last in user)
