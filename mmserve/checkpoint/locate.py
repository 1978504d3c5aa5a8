"""Finds the checkpoint directory for ``--model``: a packaged name, a local directory or GGUF file, or a hub id to
download."""

from __future__ import annotations

import re
from pathlib import Path

from mmserve.checkpoint.gguf.directory import directory_of, gguf_files
from mmserve.runtime.errors import StartupError

_PACKAGED = Path(__file__).parent.parent / "packaged"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_WEIGHTS = ["*.safetensors"]
_DOWNLOADED = ["*.json", "*.jinja", "tokenizer*", "merges.txt"]
_SKIPPED = ["*/*", "consolidated*"]
"""Some hub repositories also have the same weights in another layout."""


def locate(model: str, *, download: bool = True, weights: bool = True, option: str = "--model") -> Path:
    """The checkpoint directory, downloaded if necessary. Raises StartupError with a message of one line.

    Without ``download`` a hub id must have been downloaded before. Without ``weights`` they are not downloaded.
    ``option`` has named the model.

    A packaged name takes precedence over a directory of that name; ``./name`` selects the directory.
    """
    if model in packaged_names():
        return _PACKAGED / model
    path = Path(model).expanduser()
    if path.is_file() and path.suffix == ".gguf":
        return directory_of(path)
    if path.is_dir():
        is_gguf = gguf_files(path) and not (path / "config.json").exists()
        return directory_of(path) if is_gguf else path.resolve()
    if _HUB_ID.fullmatch(model) and not model.startswith("."):
        return _of_hub(model, download=download, weights=weights, option=option)
    raise StartupError(
        f"{option} {model}: no such directory or GGUF file, no hub id (owner/name), and not one of the packaged models "
        f"({', '.join(packaged_names()) or 'none'})"
    )


def packaged_names() -> list[str]:
    """Names of the models that are part of the package."""
    return sorted(file.parent.name for file in _PACKAGED.glob("*/config.json"))


def _of_hub(hub_id: str, *, download: bool, weights: bool, option: str) -> Path:
    # Imported lazily: the import takes a tenth of a second, and local models do not need it.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    wanted = [*_WEIGHTS, *_DOWNLOADED] if weights else _DOWNLOADED
    try:
        found = snapshot_download(
            hub_id, local_files_only=not download, allow_patterns=wanted, ignore_patterns=_SKIPPED
        )
        return Path(found)
    except GatedRepoError:
        raise StartupError(f"{option} {hub_id}: access is restricted; accept its terms and set HF_TOKEN") from None
    except RepositoryNotFoundError:
        raise StartupError(f"{option} {hub_id}: no such directory here, and no such model on the hub") from None
    except Exception as error:  # noqa: BLE001 - the error types depend on the hub client's version
        if not download:
            raise StartupError(f"{hub_id} is no directory here, and not on this disk as a model of the hub") from None
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise StartupError(
            f"{option} {hub_id}: no such directory here, and fetching it from the hub failed: {reason}"
        ) from None
