"""The tokens that a checkpoint's tokenizer adds to its vocabulary: control tokens and placeholders."""

from __future__ import annotations

from pathlib import Path

from mmserve.checkpoint.config.tokenizer_json import tokenizer_json


def added_tokens(directory: Path) -> dict[int, str]:
    """Id -> text; empty without a tokenizer. Raises StartupError if it cannot be parsed."""
    added = (tokenizer_json(directory) or {}).get("added_tokens") or []
    return {int(token["id"]): str(token["content"]) for token in added}
