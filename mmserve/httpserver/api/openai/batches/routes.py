"""``/v1/files`` and ``/v1/batches``: OpenAI's Files and Batch API. They belong to the API key that made them."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from mmserve.batch.lines import ENDPOINTS
from mmserve.httpserver.api.openai.batches.runs import BatchRuns
from mmserve.httpserver.api.openai.batches.upload import MAX_EXPIRY_S, MIN_EXPIRY_S, UPLOAD_NBYTES, receive_file
from mmserve.httpserver.api.openai.fields import decode
from mmserve.httpserver.api.openapi import NAMED, WITH_BODY, answers
from mmserve.httpserver.batch_store.records import OutputExpiry, StoredBatch, StoredFile
from mmserve.httpserver.batch_store.store import BatchStore, new_id, today_s
from mmserve.httpserver.context import WorkerContext
from mmserve.httpserver.http.body import read_body
from mmserve.httpserver.http.disconnect import until_disconnect
from mmserve.runtime.errors import InvalidRequest, NotFound, quoted

_TAGS: list[str | Enum] = ["batches"]
_WINDOW_S = 86400
_MAX_BODY_NBYTES = 64 * 1024
_MAX_FILES, _MAX_BATCHES = 10_000, 100
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: Metadata | None = None
    output_expires_after: OutputExpiry | None = None


class FileList(msgspec.Struct):
    data: list[StoredFile]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: str = "list"


class BatchList(msgspec.Struct):
    data: list[StoredBatch]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: str = "list"


class Deleted(msgspec.Struct):
    id: str
    object: str = "file"
    deleted: bool = True


def batch_routes(context: WorkerContext, runs: BatchRuns) -> APIRouter:
    """Without --batch-dir they answer 404 with the reason, and are not in the document."""
    store: BatchStore = context.batches
    router = APIRouter(include_in_schema=store.is_enabled)
    _add_file_routes(router, store, context)
    _add_batch_routes(router, store, runs)
    return router


def _add_file_routes(router: APIRouter, store: BatchStore, context: WorkerContext) -> None:
    stall_s = context.deployment.config.body_timeout

    @router.post("/v1/files", response_class=Response, tags=_TAGS, responses=answers(StoredFile, WITH_BODY))
    async def upload(request: Request) -> Response:
        """Store a file (multipart/form-data: ``file``, ``purpose``=batch)."""
        resources = context.admit_request()
        try:
            await resources.reserve_body(UPLOAD_NBYTES, lambda: until_disconnect(request))
            return _json(await receive_file(request, store, _owner(request), stall_s))
        finally:
            resources.release()

    @router.get("/v1/files", response_class=Response, tags=_TAGS, responses=answers(FileList, NAMED))
    async def list_files(request: Request) -> Response:
        """The files of this key. Query: after, limit, order (asc, desc), purpose."""
        owner, after, limit = (
            _owner(request),
            request.query_params.get("after"),
            _limit(request, _MAX_FILES, _MAX_FILES),
        )
        order, purpose = request.query_params.get("order", "desc"), request.query_params.get("purpose")
        if order not in ("asc", "desc"):
            raise InvalidRequest("order must be asc or desc", param="order")
        newest_first = order == "desc"
        files = await store.run(
            lambda db: db.files(
                owner, today_s(), after=after, limit=limit + 1, newest_first=newest_first, purpose=purpose
            )
        )
        if files is None:
            raise _no_file(str(after), "after")
        return _json(FileList(*_page(files, limit)))

    @router.get("/v1/files/{id}", response_class=Response, tags=_TAGS, responses=answers(StoredFile, NAMED))
    async def retrieve(request: Request, id: str) -> Response:
        """A file, without its content."""
        return _json(await found(request, id))

    @router.get("/v1/files/{id}/content", response_class=Response, tags=_TAGS, responses=answers(Any, NAMED))
    async def content(request: Request, id: str) -> Response:
        """The content of a file."""
        file = await found(request, id)
        path = await store.run(lambda db: db.path_of(file.id))
        return FileResponse(path, media_type="application/octet-stream")

    @router.delete("/v1/files/{id}", response_class=Response, tags=_TAGS, responses=answers(Deleted, NAMED))
    async def delete(request: Request, id: str) -> Response:
        """Delete a file, unless a batch still reads it."""
        owner = _owner(request)
        deleted = await store.run(lambda db: db.delete_file(owner, id))
        if deleted is None:
            raise _no_file(id)
        if not deleted:
            raise InvalidRequest(f"a batch still reads the file {quoted(id)}: cancel it first", param="file_id")
        return _json(Deleted(id))

    async def found(request: Request, id: str) -> StoredFile:
        owner = _owner(request)
        file = await store.run(lambda db: db.file(owner, id, today_s()))
        if file is None:
            raise _no_file(id)
        return file


def _add_batch_routes(router: APIRouter, store: BatchStore, runs: BatchRuns) -> None:
    @router.post("/v1/batches", response_class=Response, tags=_TAGS, responses=answers(StoredBatch, WITH_BODY))
    async def create(request: Request) -> Response:
        """Answer the requests of an uploaded file."""
        batch = _new_batch(decode(await read_body(request, _MAX_BODY_NBYTES), BatchRequest))
        owner = _owner(request)
        if not await store.run(lambda db: db.add_batch(owner, batch)):
            raise _no_file(batch.input_file_id, "input_file_id")
        runs.wake()
        return _json(batch)

    @router.get("/v1/batches", response_class=Response, tags=_TAGS, responses=answers(BatchList, NAMED))
    async def list_batches(request: Request) -> Response:
        """The batches of this key, the newest first. Query: after, limit."""
        owner, after, limit = _owner(request), request.query_params.get("after"), _limit(request, 20, _MAX_BATCHES)
        batches = await store.run(lambda db: db.batches(owner, after=after, limit=limit + 1))
        if batches is None:
            raise _no_batch(str(after), "after")
        return _json(BatchList(*_page(batches, limit)))

    @router.get("/v1/batches/{id}", response_class=Response, tags=_TAGS, responses=answers(StoredBatch, NAMED))
    async def retrieve(request: Request, id: str) -> Response:
        """A batch, and how far it is."""
        owner = _owner(request)
        batch = await store.run(lambda db: db.batch(owner, id))
        if batch is None:
            raise _no_batch(id)
        return _json(batch)

    @router.post(
        "/v1/batches/{id}/cancel", response_class=Response, tags=_TAGS, responses=answers(StoredBatch, WITH_BODY)
    )
    async def cancel(request: Request, id: str) -> Response:
        """Begin no more lines of a batch. What is answered is in its output file."""
        owner = _owner(request)
        batch = await store.run(lambda db: None if db.batch(owner, id) is None else db.change_batch(id, _cancel))
        if batch is None:
            raise _no_batch(id)
        if batch.status not in ("cancelling", "cancelled"):
            raise InvalidRequest(f"the batch is {batch.status} already", param="batch_id")
        runs.wake()
        return _json(batch)


def _new_batch(request: BatchRequest) -> StoredBatch:
    if request.endpoint not in ENDPOINTS:
        raise InvalidRequest(f"endpoint must be one of {', '.join(ENDPOINTS)}", param="endpoint")
    if request.completion_window != "24h":
        raise InvalidRequest("completion_window must be 24h", param="completion_window")
    expiry = request.output_expires_after
    if expiry is not None and not MIN_EXPIRY_S <= expiry.seconds <= MAX_EXPIRY_S:
        raise InvalidRequest(
            f"seconds must be from {MIN_EXPIRY_S} to {MAX_EXPIRY_S}", param="output_expires_after.seconds"
        )
    created_s = today_s()
    return StoredBatch(
        id=new_id("batch_"),
        endpoint=request.endpoint,
        input_file_id=request.input_file_id,
        created_at=created_s,
        expires_at=created_s + _WINDOW_S,
        metadata=request.metadata,
        output_expires_after=expiry,
    )


def _cancel(batch: StoredBatch) -> None:
    if batch.status in ("validating", "in_progress"):
        batch.status, batch.cancelling_at = "cancelling", today_s()


def _page(found: list[Any], limit: int) -> tuple[list[Any], str | None, str | None, bool]:
    shown = found[:limit]
    return shown, shown[0].id if shown else None, shown[-1].id if shown else None, len(found) > limit


def _limit(request: Request, default: int, most: int) -> int:
    given = request.query_params.get("limit", str(default))
    if not given.isdecimal() or not 1 <= int(given[:9]) <= most:
        raise InvalidRequest(f"limit must be from 1 to {most}", param="limit")
    return int(given)


def _owner(request: Request) -> str:
    owner: str = request.scope["state"]["key"]
    return owner


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def _no_file(id: str, param: str = "file_id") -> NotFound:
    return NotFound(f"no file {quoted(id)} is stored", param=param)


def _no_batch(id: str, param: str = "batch_id") -> NotFound:
    return NotFound(f"no batch {quoted(id)} is stored", param=param)
