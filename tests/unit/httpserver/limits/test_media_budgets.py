"""A request whose images exceed a limit is refused with the limit's name, before any call or reservation."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mmserve.config.resolved.budgets import Budgets
from mmserve.httpserver.limits.media_budgets import MediaBudgets
from mmserve.ipc.arena import extent_nbytes
from mmserve.messages.cache import AllocItem
from mmserve.runtime.byte_budget import MIB
from mmserve.runtime.errors import TooLarge
from tests.fakes.processes.samples import Samples

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


class BudgetsUnderTest:
    """MediaBudgets of one allocation path with its recorded metrics."""

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
def test_images_up_to_the_budget_pass_and_more_are_refused_naming_the_flag(flag: str, budgets: dict[str, int]) -> None:
    checked = BudgetsUnderTest(**budgets)
    checked.check(items(2))
    checked.check([*items(2), *items(2)])
    assert flag in checked.refusal(items(3))


def test_data_and_embeddings_that_fit_only_separately_are_refused_with_both_sizes() -> None:
    """The result does not depend on what is cached already."""
    message = BudgetsUnderTest(arena_nbytes=4 * MIB).refusal(items(5))
    assert "4.8 MiB" in message
    assert "4.0 MiB" in message
    assert "--mm-cache-gb" in message


def test_refusals_are_all_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    checked = BudgetsUnderTest(arena_nbytes=0)
    for _ in range(3):
        checked.refusal(items(1))
    assert checked.samples.total("mm_alloc_too_large", "v1") == 3
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "--mm-cache-gb" in caplog.text
