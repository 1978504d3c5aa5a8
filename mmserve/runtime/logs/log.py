"""Log format of every process: time, level, process title, request id if the line is about one, message.

As text, or as one JSON object a line. A record made with ``extra={"fields": {...}}`` has more fields in JSON. Above the
level debug, the messages of exceptions that may quote a request are left out.
"""

from __future__ import annotations

import json
import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal

from mmserve.runtime.logs.exceptions import traceback_of
from mmserve.runtime.logs.handler import LogHandler
from mmserve.runtime.logs.limit import RepeatLimit

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""Id of the request that the current task or thread works for, for its log lines. Set by the request's task."""


class RequestIdFilter(logging.Filter):
    """Sets ``record.request``: what the line says about its request, unless the message names the id already."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.request_id = current = request_id.get()
        record.request = f"request {current}: " if current and current not in record.getMessage() else ""
        return True


class _Formatter(logging.Formatter):
    """``in_full``: with the messages of all exceptions."""

    def __init__(self, form: str | None = None, datefmt: str | None = None, *, in_full: bool) -> None:
        super().__init__(form, datefmt)
        self._in_full = in_full

    def formatException(self, ei: Any) -> str:
        return super().formatException(ei) if self._in_full or ei[1] is None else traceback_of(ei[1])


class JsonFormatter(_Formatter):
    """A record as one line of JSON: time (UTC), level, process, logger, message; request and exception if any."""

    def __init__(self, title: str, *, in_full: bool = False) -> None:
        super().__init__(in_full=in_full)
        self._title = title

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": self._title,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if current := getattr(record, "request_id", ""):
            line["request"] = current
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def setup(title: str, level: str, form: Literal["text", "json"] = "text") -> None:
    """Log mmserve's records from ``level`` on, and warnings of libraries, to stderr. Each line names ``title``."""
    handler = _handler()
    in_full = level == "debug"
    handler.setFormatter(JsonFormatter(title, in_full=in_full) if form == "json" else _text_formatter(title, in_full))
    handler.addFilter(RequestIdFilter())
    handler.addFilter(RepeatLimit())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("mmserve").setLevel(level.upper())


def _handler() -> logging.Handler:
    if sys.stderr is not sys.__stderr__ or sys.stderr is None:  # replaced, for instance by a test
        return logging.StreamHandler(sys.stderr)
    return LogHandler(sys.stderr.fileno())


def _text_formatter(title: str, in_full: bool) -> logging.Formatter:
    # logging.Formatter would read a "%" in the title as a format.
    title = title.replace("%", "%%")
    line = f"%(asctime)s.%(msecs)03d %(levelname)-7s [{title}] %(request)s%(message)s"
    return _Formatter(line, "%H:%M:%S", in_full=in_full)
