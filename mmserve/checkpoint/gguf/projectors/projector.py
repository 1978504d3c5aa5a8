"""What a module about one kind of projector says of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from mmserve.checkpoint.gguf.projectors.names import Names
from mmserve.checkpoint.gguf.projectors.tower import Tower

Fields = dict[str, Any]


class Projector(NamedTuple):
    """One value of ``clip.projector_type``. Its functions raise StartupError for what is not supported."""

    texts: tuple[str, ...]
    """``general.architecture`` of the language models that it is for."""
    token: str
    """Stands for a row of a picture."""
    output: Callable[[Tower], int]
    """Width of its rows."""
    config: Callable[[Tower, Fields], Fields]
    """config.json of the whole model, from the tower and the ``text_config``, which it may change."""
    settings: Callable[[Tower], Fields]
    """preprocessor_config.json."""
    names: Callable[[Tower], Names]
    spare_token: str = ""
    """Pattern of tokens of which the last one stands for rows where the vocabulary ends before ``token``."""
    template: str = ""
    """Chat template for files whose own takes no pictures."""
