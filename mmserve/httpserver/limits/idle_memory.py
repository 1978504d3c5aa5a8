"""Gives freed memory back to the kernel when a worker has had nothing to do for a while.

Under load the heap keeps what ended requests have freed, because new pages cost more than the work on a body
(``runtime/memory/allocator.py``). It grows to what the most requests at one moment took. Without this, it would keep
that for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mmserve.httpserver.limits.admission import AdmissionControl
from mmserve.runtime.memory.allocator import return_heap

IDLE_S = 1.0
"""A pause between requests that is shorter is no idleness: the next request would pay for its pages again."""


async def return_memory_when_idle(
    admission: AdmissionControl, give_back: Callable[[], None] = return_heap, idle_s: float = IDLE_S
) -> None:
    """Runs until cancelled. ``give_back`` is called in a thread, once after each time of work."""
    while True:
        await admission.admitted()
        await admission.idle()
        await asyncio.sleep(idle_s)
        if not admission.in_flight:
            await asyncio.to_thread(give_back)
