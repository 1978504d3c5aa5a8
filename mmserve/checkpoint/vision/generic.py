"""Any vision tower that transformers' modules compute."""

from __future__ import annotations

from mmserve.checkpoint.vision.tower import TowerSpec


class GenericVision(TowerSpec, frozen=True, kw_only=True, tag="transformers"):
    placeholder: str
    """What the chat template writes for a picture."""
    expansion: str
    """What stands in its place, with the token of a row once for each run of rows."""
    rows: tuple[int, ...]
    """Of each run. Empty: there is one run, whose rows depend on the picture's size and are counted by the tower."""
    axes: int = 1
    """Of positions: 3 if they are those of the grid of a picture's rows (M-RoPE)."""
    max_rows: int
    """Of a picture. One with more is refused."""
