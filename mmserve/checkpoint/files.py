"""Which files a checkpoint directory holds, and its JSON files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import msgspec

from mmserve.runtime.errors import StartupError


def weight_files(directory: Path) -> list[Path]:
    """The checkpoint's safetensors files, sorted, or links to GGUF files.

    Raises StartupError if there are none or a shard is missing.
    """
    if links := sorted(table.with_suffix("") for table in directory.glob("*.gguf.json")):
        return links
    index = read_json(directory / "model.safetensors.index.json")
    if index is None:
        files = [directory / "model.safetensors"]
    else:
        names = set(cast("dict[str, str]", index.get("weight_map", {})).values())
        files = [directory / Path(name).name for name in sorted(names)]
    missing = [file.name for file in files if not file.is_file()]
    if not files or missing:
        raise StartupError(
            f"{directory} lacks its weights ({', '.join(missing) or 'empty index'}); mmserve reads safetensors and GGUF"
        )
    return files


def has_weights(directory: Path) -> bool:
    """True if the checkpoint's safetensors files are there, all of them."""
    try:
        return bool(weight_files(directory))
    except StartupError:
        return False


def read_json(file: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None if the file does not exist. Raises StartupError if it cannot be parsed."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise StartupError(f"cannot read {file}: {error}") from None
