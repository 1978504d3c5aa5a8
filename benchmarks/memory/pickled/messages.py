"""The pickled messages between the baseline's two processes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.float32]


@dataclass
class Submitted:
    """Front to engine: one request; ``pixels`` is None for text."""

    id: int
    max_tokens: int
    pixels: Pixels | None


@dataclass
class Accepted:
    """Engine to front: the request is queued in the engine process."""

    id: int


@dataclass
class Token:
    """Engine to front: one token; ``last`` ends the request."""

    id: int
    last: bool
