"""Waiting that a cancellation does not interrupt. For bounded cleanup only."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def to_completion(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` to completion even if the caller is cancelled; re-raise the cancellation afterwards."""
    task = asyncio.ensure_future(work)
    cancelled = False
    try:
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                cancelled = True
            except Exception:  # noqa: BLE001 - raised by task.result() below
                break
        if cancelled:
            raise asyncio.CancelledError
        return task.result()
    finally:
        del task  # its exception refers to this frame, so the frame must not refer to it
