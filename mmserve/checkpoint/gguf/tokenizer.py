"""The tokenizer that a GGUF file describes, as tokenizer.json and tokenizer_config.json."""

from __future__ import annotations

import re
from typing import Any

from mmserve.checkpoint.config.tokenizer_json import QWEN_2
from mmserve.checkpoint.gguf.reader import Metadata
from mmserve.runtime.errors import StartupError

_PREFIX = "tokenizer.ggml."
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
"""Types of tokens."""
_LLAMA_3 = QWEN_2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BYTES: dict[str, Any] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_ENDS_OF_TURNS = {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<end_of_utterance>", "<|end|>"}
"""An answer ends with them too, as the field for the end names only one token."""
_SPACE = "▁"


def _split(pattern: str) -> list[dict[str, Any]]:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return [split, _BYTES | {"use_regex": False}]


_PRE_TOKENIZERS: dict[str, list[dict[str, Any]]] = {
    "gpt-2": [_BYTES],
    "smollm": [{"type": "Digits", "individual_digits": True}, _BYTES],
    "qwen2": _split(QWEN_2),
    "deepseek-r1-qwen": _split(QWEN_2),
    "llama-bpe": _split(_LLAMA_3),
    "llama3": _split(_LLAMA_3),
    "llama-v3": _split(_LLAMA_3),
    "pixtral": _split(_LLAMA_3),
    "tekken": _split(_TEKKEN),
}
"""By ``tokenizer.ggml.pre``."""
_WHOLE_WORDS_FIRST = {"llama-bpe", "llama3", "llama-v3", "pixtral", "tekken"}
"""A word that is a token is one, whatever its merges. Such tokenizers begin texts with a token, too."""
_COMPOSED = {"qwen2", "deepseek-r1-qwen"}
"""Characters are composed (NFC) first."""


class GgufTokenizer:
    """Raises StartupError for a kind that is not supported."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self.tokens: list[str] = self._list("tokens", str)
        self._types: list[int] = self._list("token_type", int) or [_NORMAL] * len(self.tokens)
        if not self.tokens or len(self._types) != len(self.tokens):
            raise StartupError(f"{_PREFIX}tokens and token_type have {len(self.tokens)} and {len(self._types)} entries")

    def stand_in(self, token: str, spare: str) -> int:
        """Id of the token that stands for rows of pictures: ``token``, or else the last with the pattern ``spare``, if
        there is a pattern.

        It counts as special from then on. Raises StartupError if there is none.
        """
        found = [id for id, each in enumerate(self.tokens) if each == token]
        if spare and not found:
            found = [id for id, each in enumerate(self.tokens) if re.fullmatch(spare, each)]
        if not found:
            raise StartupError(f"the vocabulary has no token {token}, which stands for pictures in prompts")
        self._types[found[-1]] = _CONTROL
        return found[-1]

    def definition(self) -> dict[str, Any]:
        """tokenizer.json."""
        kind = self._metadata.get(f"{_PREFIX}model")
        if kind not in ("gpt2", "llama"):
            raise StartupError(
                f"{_PREFIX}model {kind!r} is not supported (gpt2 and llama are): put the model's tokenizer.json "
                "beside the file"
            )
        parts = self._byte_level() if kind == "gpt2" else self._sentence_pieces()
        added = [
            {
                "id": id,
                "content": self.tokens[id],
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": type != _USER_DEFINED,
            }
            for id, type in enumerate(self._types)
            if type in (_UNKNOWN, _CONTROL, _USER_DEFINED)
        ]
        return {"version": "1.0", "added_tokens": added, **parts}

    def config(self) -> dict[str, Any]:
        """tokenizer_config.json."""
        names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
        ids = {name: self._id(f"{key}_token_id") for name, key in names.items()}
        return {name: self.tokens[id] for name, id in ids.items() if id is not None}

    def generation_config(self) -> dict[str, Any]:
        """generation_config.json."""
        ids = [self._id(f"{name}_token_id") for name in ("eos", "eot", "eom")]
        ends = [
            id
            for id, (token, type) in enumerate(zip(self.tokens, self._types, strict=True))
            if type in (_CONTROL, _USER_DEFINED) and token in _ENDS_OF_TURNS
        ]
        eos_ids = [id for id in dict.fromkeys([*ids, *ends]) if id is not None]
        return {"bos_token_id": self._id("bos_token_id"), "eos_token_id": eos_ids}

    def _byte_level(self) -> dict[str, Any]:
        pre = self._metadata.get(f"{_PREFIX}pre", "none")
        if pre not in _PRE_TOKENIZERS:
            raise StartupError(
                f"{_PREFIX}pre {pre!r} is not supported ({', '.join(_PRE_TOKENIZERS)} are): put the model's "
                "tokenizer.json beside the file"
            )
        merges = [merge.partition(" ")[::2] for merge in self._list("merges", str)]
        model = self._model(merges, ignore_merges=pre in _WHOLE_WORDS_FIRST)
        return {
            "normalizer": {"type": "NFC"} if pre in _COMPOSED else None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": _PRE_TOKENIZERS[pre]},
            "post_processor": self._frame(begins=pre in _WHOLE_WORDS_FIRST),
            "decoder": _BYTES,
            "model": model,
        }

    def _sentence_pieces(self) -> dict[str, Any]:
        """SentencePiece's BPE. It merges the pair whose result has the highest score."""
        scores = self._list("scores", float)
        if len(scores) != len(self.tokens):
            raise StartupError(f"{_PREFIX}scores has {len(scores)} entries for {len(self.tokens)} tokens")
        pieces = {token: id for id, token in enumerate(self.tokens) if self._types[id] == _NORMAL}
        ordered = sorted(pieces, key=lambda piece: -scores[pieces[piece]])
        merges = [
            (piece[:at], piece[at:])
            for piece in ordered
            for at in range(1, len(piece))
            if piece[:at] in pieces and piece[at:] in pieces
        ]
        prefix = bool(self._metadata.get(f"{_PREFIX}add_space_prefix", True))
        before = [{"type": "Prepend", "prepend": _SPACE}] if prefix else []
        after = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
        spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
        words = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
        unknown = self._id("unknown_token_id")
        if unknown is None:
            unknown = next((id for id, type in enumerate(self._types) if type == _UNKNOWN), None)
        unk_token = None if unknown is None else self.tokens[unknown]
        return {
            "normalizer": {"type": "Sequence", "normalizers": [*before, spaces]},
            "pre_tokenizer": None,
            "post_processor": self._frame(begins=True),
            "decoder": {
                "type": "Sequence",
                "decoders": [words, {"type": "ByteFallback"}, {"type": "Fuse"}, *after],
            },
            "model": self._model(merges) | {"unk_token": unk_token, "fuse_unk": True, "byte_fallback": True},
        }

    def _model(self, merges: list[Any], *, ignore_merges: bool = False) -> dict[str, Any]:
        vocab = {token: id for id, token in enumerate(self.tokens)}
        return {"type": "BPE", "vocab": vocab, "merges": merges, "ignore_merges": ignore_merges}

    def _frame(self, *, begins: bool) -> dict[str, Any] | None:
        """What is put around a text. ``begins``: with a token, unless the file says otherwise."""
        wanted = (
            ("bos", bool(self._metadata.get(f"{_PREFIX}add_bos_token", begins))),
            ("eos", bool(self._metadata.get(f"{_PREFIX}add_eos_token", False))),
        )
        ids = [self._id(f"{name}_token_id") if is_wanted else None for name, is_wanted in wanted]
        parts = [[] if id is None else [{"SpecialToken": {"id": self.tokens[id], "type_id": 0}}] for id in ids]
        special = {
            self.tokens[id]: {"id": self.tokens[id], "ids": [id], "tokens": [self.tokens[id]]}
            for id in ids
            if id is not None
        }
        if not special:
            return None
        one, two = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
        return {
            "type": "TemplateProcessing",
            "single": [*parts[0], one, *parts[1]],
            "pair": [*parts[0], one, two, *parts[1]],
            "special_tokens": special,
        }

    def _id(self, name: str) -> int | None:
        found = self._metadata.get(f"{_PREFIX}{name}")
        if found is None:
            return None
        if not isinstance(found, int) or not 0 <= found < len(self.tokens):
            raise StartupError(f"{_PREFIX}{name} {found!r} is no token")
        return found

    def _list(self, name: str, kind: type) -> list[Any]:
        found = self._metadata.get(f"{_PREFIX}{name}", [])
        if not isinstance(found, list) or (found and not isinstance(found[0], kind)):
            raise StartupError(f"{_PREFIX}{name} is not a list of {kind.__name__}")
        return found
