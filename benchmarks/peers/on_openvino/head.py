"""The head of an HTTP request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Head:
    """``content_length``: 0 if the request names none."""

    method: str
    target: str
    content_length: int


def parse(head: bytes) -> Head:
    """Raises ValueError if it is none."""
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split()
    fields = dict(line.lower().split(":", 1) for line in lines if ":" in line)
    return Head(method, target, int(fields.get("content-length", "0")))
