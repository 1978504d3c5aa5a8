"""Texts in ``encrypted_content``: what the server wrote and the client only keeps to send it back.

They are written in base64 and are no secret: the client is shown thoughts as they are, and summaries are of its own
conversation. What another server encrypted cannot be read.
"""

from __future__ import annotations

import base64
import binascii

_MARK = "mmserve."


def sealed(text: str) -> str:
    return _MARK + base64.b64encode(text.encode()).decode()


def unsealed(content: object) -> str | None:
    """None if this server did not write it."""
    if not isinstance(content, str) or not content.startswith(_MARK):
        return None
    try:
        return base64.b64decode(content.removeprefix(_MARK), validate=True).decode()
    except (binascii.Error, ValueError):
        return None
