"""``--limit-mm-per-prompt``, as other servers take it too: ``8``, ``image=8``, or a JSON object of kinds of media."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

FORMS = 'a whole number of at least 0, also as image=8 or {"image": 8}'


def images_of(value: Any) -> Any:
    """The number of images in ``value``, not converted yet. Raises ValueError for other media that are not 0."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = msgspec.json.decode(value)
    elif isinstance(value, str) and "=" in value:
        value = dict(part.split("=", 1) for part in value.split(","))
    if not isinstance(value, Mapping):
        return value
    limits = {str(kind).strip(): str(limit).strip() for kind, limit in value.items()}
    others = [kind for kind, limit in limits.items() if kind != "image" and limit != "0"]
    if others or "image" not in limits:
        raise ValueError(f"this server takes images alone, not {', '.join(others) or 'none'}")
    return limits["image"]
