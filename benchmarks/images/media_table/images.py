"""Images as the cache server sees them: a realistic mix of sizes, and a Zipf trace over a catalogue of them."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence

from mmserve.messages.cache import AllocItem

SMALLEST_NBYTES, LARGEST_NBYTES = 20_000, 60_000_000
_ROW_NBYTES = 8192
"""Embedding row of one image token: 4096 numbers of 2 bytes."""

_COMPRESSED = 8


def log_uniform(rng: random.Random) -> int:
    """A size between the smallest and the largest, log-uniform. Half of all bytes are in extents above 30 MB."""
    return int(math.exp(rng.uniform(math.log(SMALLEST_NBYTES), math.log(LARGEST_NBYTES))))


def image(number: int, rng: random.Random) -> AllocItem:
    """An image whose embedding size is log-uniform. Its file size is drawn independently and divided by _COMPRESSED."""
    num_tokens = max(1, log_uniform(rng) // _ROW_NBYTES)
    file_nbytes = max(SMALLEST_NBYTES, log_uniform(rng) // _COMPRESSED)
    return AllocItem(number.to_bytes(16, "big"), num_tokens, file_nbytes, num_tokens * _ROW_NBYTES)


def catalogue(count: int, seed: int) -> list[AllocItem]:
    """``count`` distinct images."""
    rng = random.Random(seed)
    return [image(number, rng) for number in range(count)]


def zipf(images: Sequence[AllocItem], alpha: float, count: int, seed: int) -> Iterator[AllocItem]:
    """``count`` requested images; the image of rank r has a probability proportional to r^-alpha."""
    weights = itertools.accumulate(rank**-alpha for rank in range(1, len(images) + 1))
    return iter(random.Random(seed).choices(images, cum_weights=list(weights), k=count))
