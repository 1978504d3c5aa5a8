"""Pictures that kill their decoder in processes that start within ``deadly_pictures``."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from PIL import PngImagePlugin

from tests.fakes.pictures.media import encoded, picture


def deadly_png(what: str, seed: int = 0) -> bytes:
    """``what``: a case of ``deadly/sitecustomize.py``."""
    text = PngImagePlugin.PngInfo()
    text.add_text("deadly", what)
    return encoded(picture(seed=seed), "PNG", pnginfo=text)


def make_deadly(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on new processes are killed by these pictures."""
    paths = [str(Path(__file__).parent / "deadly"), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
