"""What the specs of all vision towers have in common, and sizes that config.json gives as one number or two."""

from __future__ import annotations

import msgspec

from mmserve.runtime.errors import StartupError


class TowerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A vision transformer. Each architecture refines it in a struct with a ``tag`` of its own."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    patch_size: int
    """Pixels."""
    activation: str
    layer_norm_eps: float
    patches_per_row: int = 1
    """Patches that become one row of the language model."""
    streams: int = 1
    """A row is this many times as wide as the language model's hidden size."""

    @property
    def run_rows(self) -> int | None:
        """Rows that stand together in the prompt, with other text between them and the rest of a picture; None: a
        picture's rows may all stand together."""
        return None


def side_of(size: int | list[int], name: str) -> int:
    """Of a square. Raises StartupError, naming the key, for another shape."""
    sides = [size] if isinstance(size, int) else size
    if len(set(sides)) != 1:
        raise StartupError(f"vision_config: {name} {size} is not supported; it must be a square")
    return sides[0]
