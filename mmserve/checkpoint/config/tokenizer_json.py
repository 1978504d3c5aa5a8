"""A checkpoint's tokenizer.json, or what stands for it where only the files of Qwen2's Python tokenizer are published.

Those are vocab.json, merges.txt, tokenizer_config.json, and in old repositories added_tokens.json and
special_tokens_map.json. What is made of them has the form of the tokenizer.json that Qwen2's own repositories hold.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from mmserve.checkpoint.config.json_config import convert
from mmserve.checkpoint.files import read_json
from mmserve.runtime.errors import StartupError

QWEN_2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""What Qwen2's tokenizer splits texts into."""
_FILE = "tokenizer.json"
_CONFIG = "tokenizer_config.json"
_CLASSES = ("Qwen2Tokenizer", "Qwen2TokenizerFast")


class _Token(msgspec.Struct):
    content: str
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False
    special: bool = False


class _Config(msgspec.Struct):
    """tokenizer_config.json."""

    tokenizer_class: str | None = None
    add_prefix_space: bool | None = None
    added_tokens_decoder: dict[int, _Token] | None = None


def tokenizer_json(directory: Path) -> dict[str, Any] | None:
    """Read or made; None if the files for neither are there. Raises StartupError for files that cannot be parsed."""
    found = read_json(directory / _FILE)
    return _made(directory) if found is None else found


def tokenizer_text(directory: Path) -> bytes:
    """The same as text. Raises StartupError, also without the files; a tokenizer.json is not parsed."""
    try:
        return (directory / _FILE).read_bytes()
    except FileNotFoundError:
        made = _made(directory)
    except OSError as error:
        raise StartupError(f"cannot read {directory / _FILE}: {error}") from None
    if made is None:
        raise no_tokenizer(directory)
    return msgspec.json.encode(made)


def no_tokenizer(directory: Path) -> StartupError:
    """Why there is none for ``directory``."""
    name = _config(directory).tokenizer_class
    return StartupError(
        f"{directory} holds no {_FILE}; without it mmserve reads vocab.json and merges.txt of {_CLASSES[0]} alone "
        f"(tokenizer_class: {name})"
    )


def _made(directory: Path) -> dict[str, Any] | None:
    config, raw, merges = _config(directory), read_json(directory / "vocab.json"), _merges(directory / "merges.txt")
    if config.tokenizer_class not in _CLASSES or raw is None or merges is None:
        return None
    vocab = convert(raw, dict[str, int], "vocab.json")
    added = _added_tokens(directory, config, vocab)
    to_bytes = {
        "type": "ByteLevel",
        "add_prefix_space": bool(config.add_prefix_space),
        "trim_offsets": False,
        "use_regex": False,
    }
    split = {"type": "Split", "pattern": {"Regex": QWEN_2}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0",
        "added_tokens": [{"id": id, **msgspec.structs.asdict(token)} for id, token in sorted(added.items())],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, to_bytes]},
        "post_processor": to_bytes,
        "decoder": to_bytes,
        # With the added tokens, which otherwise would be numbered in their order, whatever their ids.
        "model": {
            "type": "BPE",
            "vocab": vocab | {token.content: id for id, token in added.items()},
            "merges": merges,
        },
    }


def _config(directory: Path) -> _Config:
    return convert(read_json(directory / _CONFIG) or {}, _Config, _CONFIG)


def _merges(file: Path) -> list[list[str]] | None:
    try:
        lines = file.read_text("utf-8").splitlines()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"cannot read {file}: {error}") from None
    return [line.split(" ") for line in lines if line and not line.startswith("#version")]


def _added_tokens(directory: Path, config: _Config, vocab: dict[str, int]) -> dict[int, _Token]:
    """By id. transformers' rules: added_tokens_decoder, or else the older files; what has a role is special."""
    files = [read_json(directory / name) or {} for name in (_CONFIG, "special_tokens_map.json")]
    with_roles = {text for file in files for text in _with_roles(file)}
    if config.added_tokens_decoder is not None:
        added = dict(config.added_tokens_decoder)
    else:
        ids = convert(read_json(directory / "added_tokens.json") or {}, dict[str, int], "added_tokens.json")
        added = {id: _Token(text, normalized=text not in with_roles) for text, id in ids.items()}
    listed = {token.content for token in added.values()}
    added |= {vocab[text]: _Token(text) for text in with_roles - listed if text in vocab}
    for token in added.values():
        token.special |= token.content in with_roles
    return added


def _with_roles(file: dict[str, Any]) -> list[str]:
    """The texts of ``eos_token`` and others, and of tokens that are special without a name."""
    values = [value for name, value in file.items() if name.endswith("_token")]
    for name in ("additional_special_tokens", "extra_special_tokens"):
        more = file.get(name) or []
        values += more.values() if isinstance(more, dict) else more
    texts = [value.get("content") if isinstance(value, dict) else value for value in values]
    return [text for text in texts if isinstance(text, str)]
