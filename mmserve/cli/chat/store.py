"""Files that an interactive chat keeps for its user: the last conversation, and the lines that were typed."""

from __future__ import annotations

import os
from pathlib import Path

from mmserve.cli.chat.conversation import ChatError, Conversation


class ChatStore:
    """Below ``$XDG_STATE_HOME/mmserve``; readable by the user alone."""

    def __init__(self) -> None:
        self._dir = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "mmserve"

    @property
    def lines(self) -> Path:
        """The typed lines. The file is made if it is missing."""
        path = self._dir / "chat-lines"
        self._make(path)
        return path

    def save_last(self, conversation: Conversation) -> None:
        write(self._make(self._dir / "last-chat.json"), conversation)

    def load_last(self) -> Conversation:
        """Raises ChatError if there is none."""
        return read(self._dir / "last-chat.json")

    def _make(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
        return path


def write(path: Path, conversation: Conversation) -> None:
    """Write a conversation to a file that the user alone may read. Raises OSError."""
    new = path.with_name(f".{path.name}.new")
    new.touch(mode=0o600)
    new.write_text(conversation.to_json(), encoding="utf-8")
    new.replace(path)


def read(path: Path) -> Conversation:
    """Raises ChatError, which names the file."""
    try:
        return Conversation.from_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ChatError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    except ChatError as error:
        raise ChatError(f"{path}: {error}") from None
