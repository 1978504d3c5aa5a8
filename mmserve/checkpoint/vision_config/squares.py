"""Sizes that config.json gives as one number or two."""

from __future__ import annotations

from mmserve.runtime.errors import StartupError


def side_of(size: int | list[int], name: str) -> int:
    """Of a square. Raises StartupError, naming the key, for another shape."""
    sides = [size] if isinstance(size, int) else size
    if len(set(sides)) != 1:
        raise StartupError(f"vision_config: {name} {size} is not supported; it must be a square")
    return sides[0]
