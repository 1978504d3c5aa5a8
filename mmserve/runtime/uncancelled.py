"""Waiting that cannot be cut short: cancellation is delivered after the awaited work, not instead of it.

Only for bounded work (cleanup); knows nothing of what is awaited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def to_completion(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` to its end, however often the caller is cancelled meanwhile; then raise CancelledError if it was."""
    task = asyncio.ensure_future(work)
    cancelled = False
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
