"""Any vision tower that transformers' modules compute, if each picture has the same tokens."""

from __future__ import annotations

from mmserve.checkpoint.vision.tower import TowerSpec


class GenericVision(TowerSpec, frozen=True, kw_only=True, tag="transformers"):
    placeholder: str
    """What the chat template writes for a picture."""
    expansion: str
    """What stands in its place, with the token of a row once for each run of rows."""
    rows: tuple[int, ...]
    """Of each run."""
