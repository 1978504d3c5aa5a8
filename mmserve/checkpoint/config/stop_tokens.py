"""The token ids that begin and end a text, which a checkpoint's files give in three places."""

from __future__ import annotations

from pathlib import Path

from mmserve.checkpoint.config.added_tokens import added_tokens
from mmserve.checkpoint.config.json_config import convert
from mmserve.checkpoint.config.text_config import GenerationJson, TextJson, TokenIds
from mmserve.checkpoint.files import read_json


def ends_of_text(directory: Path, config: TextJson) -> tuple[int | None, tuple[int, ...]]:
    """BOS id and EOS ids: those of generation_config or else config, and the tokenizer's EOS.

    Many fine-tunes set their EOS only in the tokenizer.
    """
    name = "generation_config.json"
    generation = convert(read_json(directory / name) or {}, GenerationJson, name)
    eos_ids = _as_list(generation.eos_token_id) or _as_list(config.eos_token_id)
    bos_id = config.bos_token_id if generation.bos_token_id is None else generation.bos_token_id
    return bos_id, tuple(dict.fromkeys([*eos_ids, *_tokenizer_eos(directory)]))


def _as_list(ids: TokenIds) -> list[int]:
    return [] if ids is None else [ids] if isinstance(ids, int) else ids


def _tokenizer_eos(directory: Path) -> list[int]:
    eos_token = (read_json(directory / "tokenizer_config.json") or {}).get("eos_token")
    text = eos_token.get("content") if isinstance(eos_token, dict) else eos_token
    return [id for id, content in added_tokens(directory).items() if text is not None and content == text]
