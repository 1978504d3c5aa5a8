"""Which GGUF file is a projector."""

from __future__ import annotations

from pathlib import Path

from mmserve.runtime.errors import StartupError


def is_projector(path: Path) -> bool:
    return "mmproj" in path.name.lower()


def projector_beside(file: Path) -> Path | None:
    """Raises StartupError if there are several."""
    found = [each.resolve() for each in sorted(file.parent.glob("*.gguf")) if is_projector(each)]
    if len(found) > 1:
        raise StartupError(f"beside it lie several projectors ({', '.join(each.name for each in found)}): keep one")
    return found[0] if found else None
