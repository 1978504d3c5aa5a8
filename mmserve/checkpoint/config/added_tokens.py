"""The tokens that a checkpoint's tokenizer.json adds to its vocabulary: control tokens and placeholders."""

from __future__ import annotations

from pathlib import Path

from mmserve.checkpoint.files import read_json


def added_tokens(directory: Path) -> dict[int, str]:
    """Id -> text; empty without a tokenizer.json. Raises StartupError if it cannot be parsed."""
    added = (read_json(directory / "tokenizer.json") or {}).get("added_tokens") or []
    return {int(token["id"]): str(token["content"]) for token in added}
