"""Leaks in the code under test: reservations of an HTTP worker, and leases of owners that ended in good order.

Product code logs leaks and repairs them, so tests would not see them otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import pytest

from mmserve.cache_server import shared_table
from mmserve.httpserver.limits import reservations
from mmserve.httpserver.limits.reservations import Reservation

_LOGGERS = [shared_table.logger, reservations.logger]
_init = Reservation.__init__


class _MessageCollector(logging.Handler):
    def __init__(self, messages: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        self._messages.append(record.getMessage())


@contextmanager
def leaks() -> Iterator[list[str]]:
    """Descriptions of the leaks within the block; complete when the block ends. Nested: the innermost gets them."""
    found: list[str] = []
    created: WeakSet[Reservation] = WeakSet()

    def init(reservation: Reservation, *args: Any) -> None:
        _init(reservation, *args)
        created.add(reservation)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reservation, "__init__", init)
        for logger in _LOGGERS:
            patch.setattr(logger, "handlers", [_MessageCollector(found)])
        yield found
    found += [f"{one.nbytes} bytes are still reserved" for one in created if one.nbytes]
