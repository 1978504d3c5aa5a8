"""Pictures that kill their decoder, for tests: Python imports this file at its start if PYTHONPATH names
this directory.

A PNG with a text chunk ``deadly`` does what the chunk says when it is loaded. Defects of native decoders are mended in
every release, so no real file would do for long.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

from PIL import PngImagePlugin

_load = PngImagePlugin.PngImageFile.load


def _load_deadly(image: PngImagePlugin.PngImageFile) -> Any:
    match image.info.get("deadly"):
        case "segfault":
            ctypes.string_at(0)
        case "exit":
            os._exit(3)
        case "loop":
            while True:
                pass
        case "memory":
            bytearray(1 << 36)
    return _load(image)


PngImagePlugin.PngImageFile.load = _load_deadly  # type: ignore[method-assign]
