"""How commands print rows and sizes."""

from __future__ import annotations

from collections.abc import Sequence

_KIB = 1 << 10


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """A line for each row, its cells below those of the row before."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def size(nbytes: float) -> str:
    """In the largest unit of which it is at least one."""
    found = nbytes / _KIB
    for unit in ("KiB", "MiB"):
        if found < _KIB:
            return f"{found:.4g} {unit}"
        found /= _KIB
    return f"{found:.1f} GiB"
