"""Log format of every process: time, level, process title, request id if the line is about one, message."""

from __future__ import annotations

import logging
import sys
from contextvars import ContextVar

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""Id of the request that the current task or thread works for, for its log lines. Set by the request's task."""


class RequestIdFilter(logging.Filter):
    """Sets ``record.request``: what the line says about its request, unless the message names the id already."""

    def filter(self, record: logging.LogRecord) -> bool:
        current = request_id.get()
        record.request = f"request {current}: " if current and current not in record.getMessage() else ""
        return True


def setup(title: str, level: str) -> None:
    """Log mmserve's records from ``level`` on, and warnings of libraries, to stderr. Each line names ``title``."""
    handler = logging.StreamHandler(sys.stderr)
    # logging.Formatter would read a "%" in the title as a format.
    title = title.replace("%", "%%")
    line = f"%(asctime)s.%(msecs)03d %(levelname)-7s [{title}] %(request)s%(message)s"
    handler.setFormatter(logging.Formatter(line, datefmt="%H:%M:%S"))
    handler.addFilter(RequestIdFilter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("mmserve").setLevel(level.upper())
