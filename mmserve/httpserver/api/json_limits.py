"""Limits on the JSON of a request, so that parsing it never holds the event loop for long.

The JSON parser keeps the interpreter's lock, so a thread of its own does not help against a body that takes seconds.
The time is bounded by the number of bytes and by the number of values that become Python objects. A request that fits
the context stays far below both limits.
"""

from __future__ import annotations

import re

from mmserve.runtime.errors import ContextLengthExceeded, InvalidRequest

_MIN_LIMIT_NBYTES = 512 * 1024
_NBYTES_PER_TOKEN = 24
"""More than any text takes: 4 for English, 18 for Cyrillic in the form of \\uXXXX."""
QUICK_NBYTES = 32 * 1024
"""JSON up to this size is parsed within 10 ms, whatever is in it."""
_MAX_COST = 200_000
_CONTAINER_COST = 10
"""A list or an object takes 0.6 to 1.4 us, another value about 0.05 us. So _MAX_COST is about 20 ms."""
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


def max_json_nbytes(max_model_len: int) -> int:
    """Limit on the JSON of a request without its images, for a context of ``max_model_len`` tokens."""
    return _MIN_LIMIT_NBYTES + _NBYTES_PER_TOKEN * max_model_len


def too_much_text(max_model_len: int) -> ContextLengthExceeded:
    """The error for JSON that is longer than ``max_json_nbytes``."""
    limit_nbytes = max_json_nbytes(max_model_len)
    return ContextLengthExceeded(
        f"the request has more than {limit_nbytes} bytes besides its images, which cannot fit the context of "
        f"{max_model_len} tokens",
        param="messages",
    )


def check_values(json: bytes | bytearray) -> None:
    """Raise InvalidRequest if parsing would make too many objects."""
    if len(json) <= QUICK_NBYTES or _cost(json) <= _MAX_COST:
        return
    # Brackets and commas in texts do not count.
    if _cost(_STRING.sub(b"", json)) > _MAX_COST:
        raise InvalidRequest("the request has too many lists, objects or values: put them into fewer messages or parts")


def _cost(json: bytes | bytearray) -> int:
    return _CONTAINER_COST * (json.count(b"[") + json.count(b"{")) + json.count(b",")
