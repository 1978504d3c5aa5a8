"""Images of one request that can never pass are refused before anything is asked of anybody, with the limit's name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mmserve.config.deployment import Budgets
from mmserve.httpserver.limits.media_budgets import MediaBudgets
from mmserve.ipc.arena import extent_nbytes
from mmserve.messages.cache import AllocItem
from mmserve.runtime.byte_budget import MIB
from mmserve.runtime.errors import TooLarge
from tests.fakes.samples import Samples

DATA, EMBED, PIXELS = 400_000, 600_000, 1000
ROOMY = Budgets(
    body_nbytes=0,
    short_body_nbytes=0,
    fetch_nbytes=0,
    data_nbytes=4 * MIB,
    pixel_nbytes=MIB,
    embed_nbytes=4 * MIB,
)


def items(count: int) -> list[AllocItem]:
    return [AllocItem(bytes([number]), 4, DATA, EMBED) for number in range(count)]


class AllocPath:
    """The budgets of one lane, and what was counted."""

    def __init__(self, arena_nbytes: int = 64 * MIB, **budgets: int) -> None:
        self.samples: Any = Samples()
        self._budgets = MediaBudgets(msgspec.structs.replace(ROOMY, **budgets), arena_nbytes, self.samples, "v1")

    def check(self, items: list[AllocItem]) -> None:
        self._budgets.check(items, [PIXELS] * len(items))

    def refusal(self, items: list[AllocItem]) -> str:
        with pytest.raises(TooLarge) as caught:
            self.check(items)
        return caught.value.message


@pytest.mark.parametrize(
    ("flag", "budgets"),
    [
        ("--data-budget-mb", {"data_nbytes": 2 * extent_nbytes(DATA)}),
        ("--embed-budget-mb", {"embed_nbytes": 2 * extent_nbytes(EMBED)}),
        ("--pixel-budget-mb", {"pixel_nbytes": 2 * PIXELS}),
        ("--mm-cache-gb", {"arena_nbytes": 2 * (extent_nbytes(DATA) + extent_nbytes(EMBED))}),
    ],
)
def test_what_fits_exactly_passes_and_more_is_refused_by_name(flag: str, budgets: dict[str, int]) -> None:
    lane = AllocPath(**budgets)
    lane.check(items(2))
    lane.check([*items(2), *items(2)])
    assert flag in lane.refusal(items(3))


def test_forms_that_fit_each_but_not_together_are_refused_with_both_numbers() -> None:
    """Whether anything of it is cached already or not, so that a request does not pass by chance."""
    message = AllocPath(arena_nbytes=4 * MIB).refusal(items(5))
    assert "4.8 MiB" in message
    assert "4.0 MiB" in message
    assert "--mm-cache-gb" in message


def test_refusals_are_counted_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    lane = AllocPath(arena_nbytes=0)
    for _ in range(3):
        lane.refusal(items(1))
    assert lane.samples.total("mm_alloc_too_large", "v1") == 3
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "--mm-cache-gb" in caplog.text
