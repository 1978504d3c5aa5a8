"""A tokenizer in the files of Qwen2's tokenizer in Python: vocab.json, merges.txt and the added tokens beside them."""

import json
from pathlib import Path
from typing import Any, Literal

from tests.fakes.models.chat_models import write

Form = Literal["decoder", "older files"]
"""Where the added tokens are: in tokenizer_config.json, or in added_tokens.json and special_tokens_map.json."""


def write_parts(directory: Path, definition: dict[str, Any], form: Form = "decoder", **config: Any) -> None:
    """``definition``: a byte-level tokenizer.json. ``config``: of tokenizer_config.json, as is ``tokenizer_class``."""
    added = definition["added_tokens"]
    contents = {token["content"]: token["id"] for token in added}
    vocab = {token: id for token, id in definition["model"]["vocab"].items() if token not in contents}
    write(directory / "vocab.json", vocab)
    pairs = [" ".join(pair) for pair in definition["model"]["merges"]]
    (directory / "merges.txt").write_text("\n".join(["#version: 0.2", *pairs, ""]), encoding="utf-8")
    config = {"tokenizer_class": "Qwen2Tokenizer", "add_prefix_space": False, "unk_token": None, **config}
    write(directory / "added_tokens.json", contents)
    if form == "decoder":
        by_id = {token["id"]: {key: value for key, value in token.items() if key != "id"} for token in added}
        config["added_tokens_decoder"] = by_id
    else:
        special = [token["content"] for token in added if token["special"]]
        write(directory / "special_tokens_map.json", {"additional_special_tokens": special})
    write(directory / "tokenizer_config.json", config)


def without_tokenizer_json(directory: Path) -> Path:
    """The same checkpoint with its tokenizer in such files."""
    file = directory / "tokenizer.json"
    definition = json.loads(file.read_text())
    file.unlink()
    config = json.loads((directory / "tokenizer_config.json").read_text())
    write_parts(directory, definition, **config | {"tokenizer_class": "Qwen2Tokenizer"})
    return directory
