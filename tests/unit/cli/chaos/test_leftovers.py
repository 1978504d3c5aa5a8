"""Which metrics count as left over."""

from __future__ import annotations

import asyncio

from mmserve.cli.chaos.leftovers import left_over, not_zero

IDLE = """\
# HELP mmserve:mm_leases Leases held
mmserve:mm_leases 0.0
mmserve:mm_lease_leaks_total 0.0
mmserve:budget_used_bytes{budget="body"} 0.0
mmserve:budget_used_bytes{budget="data"} 4096.0
mmserve:generation_tokens_total 812.0
"""


def test_cached_images_and_counters_are_not_left_over() -> None:
    assert not_zero(IDLE) == {}


def test_leases_reservations_and_leaks_are() -> None:
    busy = IDLE.replace("mm_leases 0.0", "mm_leases 2.0").replace("leaks_total 0.0", "leaks_total 1.0")
    busy = busy.replace('"body"} 0.0', '"body"} 64.0')
    assert not_zero(busy) == {
        "mm_leases": 2.0,
        "mm_lease_leaks_total": 1.0,
        'budget_used_bytes{budget="body"}': 64.0,
    }


def test_the_server_may_take_a_moment_to_become_idle() -> None:
    pages = iter((IDLE.replace("mm_leases 0.0", "mm_leases 2.0"), IDLE))

    async def metrics() -> str:
        return next(pages)

    assert asyncio.run(left_over(metrics)) == {}
