"""Reads a multipart/form-data body (RFC 7578) as it arrives, in parts of any size. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from mmserve.runtime.errors import InvalidRequest

MAX_HEAD_NBYTES = 8192
MAX_PARTS = 32
_BOUNDARY = re.compile(r"""boundary=(?:"([^"\r\n]{1,70})"|([^\s;"]{1,70}))""", re.IGNORECASE)
_PARAMETER = re.compile(r""";\s*([\w*]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s;]*))""")


@dataclass(frozen=True)
class PartStart:
    """``filename``: None for a field of a form."""

    name: str
    filename: str | None


@dataclass(frozen=True)
class PartData:
    data: bytes


@dataclass(frozen=True)
class PartEnd:
    pass


Event = PartStart | PartData | PartEnd


class MultipartReader:
    """``content_type``: the header of the request. Raises InvalidRequest for what is no such body."""

    def __init__(self, content_type: str) -> None:
        found = _BOUNDARY.search(content_type)
        if found is None or not content_type.lower().startswith("multipart/form-data"):
            raise InvalidRequest("send the file as multipart/form-data, with a boundary")
        boundary = found[1] or found[2]
        self._delimiter = b"\r\n--" + boundary.encode("latin-1", "replace")
        # The first delimiter has no line before it.
        self._buffer = bytearray(b"\r\n")
        self._state: Literal["preamble", "delimiter", "head", "data", "end"] = "preamble"
        self._num_parts = 0

    def feed(self, data: bytes) -> Iterator[Event]:
        """What is known with these further bytes of the body."""
        self._buffer += data
        while True:
            if self._state in ("preamble", "data"):
                place = self._buffer.find(self._delimiter)
                content = self._take(len(self._buffer) - len(self._delimiter) if place < 0 else place)
                if self._state == "data" and content:
                    yield PartData(content)
                if place < 0:
                    return
                self._take(len(self._delimiter))
                if self._state == "data":
                    yield PartEnd()
                self._state = "delimiter"
            elif self._state == "delimiter":
                if not self._read_delimiter():
                    return
            elif self._state == "head":
                start = self._read_head()
                if start is None:
                    return
                yield start
            else:
                self._buffer.clear()  # what follows the last part means nothing
                return

    def end(self) -> None:
        """The body has ended. Raises InvalidRequest if it was not whole."""
        if self._state != "end":
            raise InvalidRequest("the multipart body ends too early")

    def _read_delimiter(self) -> bool:
        """What follows a delimiter: the end, or the line end before a part. False if more must arrive."""
        if len(self._buffer) < 2:
            return False
        if self._buffer.startswith(b"--"):
            self._state = "end"
            return True
        place = self._buffer.find(b"\r\n")
        if place < 0 and len(self._buffer) <= MAX_HEAD_NBYTES:
            return False
        if place < 0 or self._buffer[:place].strip(b" \t"):
            raise InvalidRequest("the multipart body is malformed")
        # The line end stays: it ends the head of a part that has none.
        self._take(place)
        self._num_parts += 1
        if self._num_parts > MAX_PARTS:
            raise InvalidRequest(f"the multipart body has more than {MAX_PARTS} parts")
        self._state = "head"
        return True

    def _read_head(self) -> PartStart | None:
        place = self._buffer.find(b"\r\n\r\n")
        if place > MAX_HEAD_NBYTES or (place < 0 and len(self._buffer) > MAX_HEAD_NBYTES):
            raise InvalidRequest(f"the head of a part is longer than {MAX_HEAD_NBYTES} bytes")
        if place < 0:
            return None
        head = self._take(place + 4).decode("utf-8", "replace")
        self._state = "data"
        for line in head.split("\r\n"):
            name, _, value = line.partition(":")
            if name.strip().lower() == "content-disposition":
                parameters = {key.lower(): quoted or plain for key, quoted, plain in _PARAMETER.findall(value)}
                if "name" in parameters:
                    return PartStart(parameters["name"], parameters.get("filename"))
        raise InvalidRequest("a part of the multipart body has no name")

    def _take(self, count: int) -> bytes:
        count = max(0, count)
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken
