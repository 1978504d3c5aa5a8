"""Any vision tower that transformers' modules compute."""

from __future__ import annotations

from mmserve.checkpoint.vision.tower import TowerSpec


class GenericVision(TowerSpec, frozen=True, kw_only=True, tag="transformers"):
    placeholder: str
    """What the chat template writes for a picture."""
    expansion: str
    """What stands in its place, with the token of a row once for each run of rows. Empty: it depends on the picture's
    size, and is asked of the tower's process."""
    rows: tuple[int, ...]
    """Of each run. Empty: they depend on the picture's size, and are asked of the tower's process."""
    axes: int = 1
    """Of positions: 3 if they are those of the grid of a picture's rows (M-RoPE)."""
    max_rows: int
    """Of a picture. One with more is refused."""
