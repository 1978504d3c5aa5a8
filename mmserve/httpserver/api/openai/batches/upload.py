"""Receives an uploaded file, straight to the disk, with the fields of its form."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import ClientDisconnect, Request

from mmserve.httpserver.api.openai.batches.multipart import MultipartReader, PartData, PartEnd, PartStart
from mmserve.httpserver.batch_store.database import BatchDatabase
from mmserve.httpserver.batch_store.records import StoredFile
from mmserve.httpserver.batch_store.store import BatchStore, NewContent, today_s
from mmserve.httpserver.http.body import PROGRESS_NBYTES
from mmserve.runtime.errors import InvalidRequest, TooLarge, TooSlow, quoted

_WRITTEN_NBYTES = 1 << 20
"""Collected before they are written."""
UPLOAD_NBYTES = 3 * _WRITTEN_NBYTES
"""Memory that an upload takes."""
_MAX_FIELD_NBYTES = 1024
_MAX_NAME_CHARS = 255
_FIELDS = frozenset({"purpose", "expires_after[anchor]", "expires_after[seconds]"})
MIN_EXPIRY_S, MAX_EXPIRY_S = 3600, 30 * 86400


class _Form:
    """What has arrived: fields, and the name and the content of the file that is not written yet."""

    def __init__(self) -> None:
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self.waiting = bytearray()
        self._part: PartStart | None = None
        self._value = bytearray()

    def add(self, event: Any) -> None:
        match event:
            case PartStart(name=name, filename=filename):
                if name == "file" and filename is not None and self.filename is None:
                    self.filename = filename[-_MAX_NAME_CHARS:] or "file"
                elif name not in _FIELDS or name in self.fields or filename is not None:
                    raise InvalidRequest(f"{quoted(name)} is not a field, or is there twice", param=name[:60])
                self._part, self._value = event, bytearray()
            case PartData(data=data):
                assert self._part is not None
                kept = self.waiting if self._part.name == "file" else self._value
                kept += data
                if len(self._value) > _MAX_FIELD_NBYTES:
                    raise InvalidRequest("a field is too long", param=self._part.name)
            case PartEnd():
                assert self._part is not None
                if self._part.name != "file":
                    self.fields[self._part.name] = self._value.decode("utf-8", "replace")


async def receive_file(request: Request, store: BatchStore, owner: str, stall_s: float) -> StoredFile:
    """Raises InvalidRequest, TooLarge, TooSlow, ClientDisconnect, and what the store raises."""
    reader, form = MultipartReader(request.headers.get("content-type", "")), _Form()
    content = await store.run(lambda db: NewContent(db, store.limit_nbytes - db.used_nbytes(), store.max_file_nbytes))
    try:
        stream = _Stream(request, stall_s)
        while data := await stream.read():
            for event in reader.feed(data):
                form.add(event)
            if len(form.waiting) >= _WRITTEN_NBYTES:
                await _write(store, content, form)
        reader.end()
        await _write(store, content, form)
        if form.filename is None:
            raise InvalidRequest("there is no file", param="file")
        file = _described(content, form)
        return await store.run(lambda db: _kept(db, owner, file, content, store.limit_nbytes))
    finally:
        await store.run(lambda db: content.close())


async def _write(store: BatchStore, content: NewContent, form: _Form) -> None:
    data, form.waiting = bytes(form.waiting), bytearray()
    await store.run(lambda db: content.write(data))


def _kept(db: BatchDatabase, owner: str, file: StoredFile, content: NewContent, limit_nbytes: int) -> StoredFile:
    """Other uploads may have taken the room meanwhile."""
    if db.used_nbytes() > limit_nbytes:
        raise TooLarge("with this file there would be more than --batch-storage-mb: delete files first", param="file")
    content.keep()
    db.add_file(owner, file)
    return file


def _described(content: NewContent, form: _Form) -> StoredFile:
    purpose = form.fields.get("purpose")
    if purpose != "batch":
        raise InvalidRequest("purpose must be batch", param="purpose")
    seconds = form.fields.get("expires_after[seconds]")
    if form.fields.get("expires_after[anchor]", "created_at") != "created_at":
        raise InvalidRequest("anchor must be created_at", param="expires_after.anchor")
    if seconds is not None and not (seconds.isdecimal() and MIN_EXPIRY_S <= int(seconds[:9]) <= MAX_EXPIRY_S):
        raise InvalidRequest(f"seconds must be from {MIN_EXPIRY_S} to {MAX_EXPIRY_S}", param="expires_after.seconds")
    created_s = today_s()
    return StoredFile(
        id=content.id,
        bytes=content.nbytes,
        created_at=created_s,
        expires_at=None if seconds is None else created_s + int(seconds),
        filename=form.filename or "",
        purpose="batch",
    )


class _Stream:
    """The body's parts as they arrive. ``stall_s``: how long PROGRESS_NBYTES, or the last ones, may take."""

    def __init__(self, request: Request, stall_s: float) -> None:
        self._request = request
        self._stall_s = stall_s
        self._since_progress_nbytes = 0
        self._deadline_s = asyncio.get_running_loop().time() + stall_s
        self._more = True

    async def read(self) -> bytes:
        """Not empty, except at the end. Raises ClientDisconnect and TooSlow."""
        data = b""
        try:
            async with asyncio.timeout_at(self._deadline_s):
                while self._more and not data:
                    message = await self._request.receive()
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnect
                    data, self._more = message.get("body", b""), message.get("more_body", False)
        except TimeoutError:
            raise TooSlow(
                f"no {PROGRESS_NBYTES} bytes of the body arrived in {self._stall_s:g} s (--body-timeout)"
            ) from None
        self._since_progress_nbytes += len(data)
        if self._since_progress_nbytes >= PROGRESS_NBYTES:
            self._since_progress_nbytes = 0
            self._deadline_s = asyncio.get_running_loop().time() + self._stall_s
        return data
