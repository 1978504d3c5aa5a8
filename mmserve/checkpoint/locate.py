"""``--model`` -> a directory on this machine: a packaged name, a local directory, or a hub id that is fetched.

Does not look into the directory; ``load`` does.
"""

from __future__ import annotations

import re
from pathlib import Path

from mmserve.runtime.errors import StartupError

_PACKAGED = Path(__file__).parent.parent / "packaged"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_WANTED = ["*.safetensors", "*.json", "*.jinja", "tokenizer*"]
_UNWANTED = ["*/*", "consolidated*"]
"""Copies of the same weights in another layout, which some hub repositories carry beside the standard one."""


def locate(model: str) -> Path:
    """The checkpoint directory. Raises StartupError in one line; may download, with progress bars.

    A packaged name wins over a directory of that name in the working directory; write ``./name`` for the latter.
    """
    if model in packaged_names():
        return _PACKAGED / model
    path = Path(model).expanduser()
    if path.is_dir():
        return path.resolve()
    if _HUB_ID.fullmatch(model) and not model.startswith("."):
        return _download(model)
    raise StartupError(
        f"--model {model}: no such directory, no hub id (owner/name), and not one of the packaged models "
        f"({', '.join(packaged_names()) or 'none'})"
    )


def packaged_names() -> list[str]:
    """Models that come with mmserve."""
    return sorted(file.parent.name for file in _PACKAGED.glob("*/config.json"))


def _download(hub_id: str) -> Path:
    # Imported here: the hub client costs a tenth of a second that a local model need not pay.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(hub_id, allow_patterns=_WANTED, ignore_patterns=_UNWANTED))
    except GatedRepoError:
        raise StartupError(f"--model {hub_id}: access is restricted; accept its terms and set HF_TOKEN") from None
    except RepositoryNotFoundError:
        raise StartupError(f"--model {hub_id}: no such directory here, and no such model on the hub") from None
    except Exception as error:  # noqa: BLE001 - which HTTP library the hub client fails in depends on its version
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise StartupError(
            f"--model {hub_id}: no such directory here, and fetching it from the hub failed: {reason}"
        ) from None
