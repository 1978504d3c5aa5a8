"""What is stored of a file and of a batch, in the form in which clients get it (OpenAI's Files and Batch API)."""

from __future__ import annotations

from typing import Literal

import msgspec

Purpose = Literal["batch", "batch_output"]
Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
UNENDED: frozenset[Status] = frozenset({"validating", "in_progress", "finalizing", "cancelling"})


class StoredFile(msgspec.Struct, kw_only=True):
    id: str
    object: str = "file"
    bytes: int
    created_at: int
    expires_at: int | None = None
    filename: str
    purpose: Purpose
    status: str = "processed"


class RequestCounts(msgspec.Struct):
    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchError(msgspec.Struct):
    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchErrors(msgspec.Struct):
    data: list[BatchError]
    object: str = "list"


class _InputDetails(msgspec.Struct):
    cached_tokens: int = 0


class _OutputDetails(msgspec.Struct):
    reasoning_tokens: int = 0


class BatchUsage(msgspec.Struct):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: _InputDetails = msgspec.field(default_factory=_InputDetails)
    output_tokens_details: _OutputDetails = msgspec.field(default_factory=_OutputDetails)


class OutputExpiry(msgspec.Struct):
    seconds: int
    anchor: Literal["created_at"] = "created_at"


class StoredBatch(msgspec.Struct, kw_only=True):
    """``output_expires_after``: of its output files."""

    id: str
    object: str = "batch"
    endpoint: str
    model: str | None = None
    errors: BatchErrors | None = None
    input_file_id: str
    completion_window: str = "24h"
    status: Status = "validating"
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = msgspec.field(default_factory=RequestCounts)
    usage: BatchUsage | None = None
    metadata: dict[str, str] | None = None
    output_expires_after: OutputExpiry | None = None


def output_ids(batch_id: str) -> tuple[str, str]:
    """Ids of the output file and the error file of a batch."""
    name = batch_id.removeprefix("batch_")
    return f"file-{name}-output", f"file-{name}-errors"
