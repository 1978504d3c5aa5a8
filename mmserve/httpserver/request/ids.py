"""Names of requests: unique, not secret. Made without a system call, which would let other threads take the lock."""

from __future__ import annotations

import random

_RANDOM = random.Random()  # seeded by the operating system


def new_request_id() -> str:
    """32 hexadecimal digits."""
    return f"{_RANDOM.getrandbits(128):032x}"
