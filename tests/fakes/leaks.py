"""What the code under test has not given back: reservations of an HTTP worker, leases of owners that end in good order.

Product code logs and mends both, so that a test would not see them otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import pytest

from mmserve.httpserver.limits.reservations import Reservation

_LOGGERS = [logging.getLogger(f"mmserve.{name}") for name in ("httpserver.reservations", "cache_server.table")]
_init = Reservation.__init__


class _Kept(logging.Handler):
    def __init__(self, messages: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        self._messages.append(record.getMessage())


@contextmanager
def leaks() -> Iterator[list[str]]:
    """Leaks within the block, in words, complete at its end. Of blocks in each other, the innermost gets them."""
    found: list[str] = []
    made: WeakSet[Reservation] = WeakSet()

    def init(reservation: Reservation, *args: Any) -> None:
        _init(reservation, *args)
        made.add(reservation)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reservation, "__init__", init)
        for logger in _LOGGERS:
            patch.setattr(logger, "handlers", [_Kept(found)])
        yield found
    found += [f"{one.nbytes} bytes are still reserved" for one in made if one.nbytes]
