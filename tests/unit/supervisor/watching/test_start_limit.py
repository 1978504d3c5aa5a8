"""Which processes hang while they start: by a clock that the test moves, with processes that exist only here."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from mmserve.supervisor.child.protocol import Ready
from mmserve.supervisor.topology import Member, Role
from mmserve.supervisor.watching.start_limit import StartLimit

CACHE = Member(Role("cache_server", ""), 0)
RANKS = [Member(Role("model_backend", "", engine=True, numbered="rank"), index) for index in range(2)]
ROUTER = Member(Role("router", "", engine=True), 0)
LIMIT_S = 80.0


@dataclass(eq=False)
class _Child:
    member: Member
    heard_s: float = 0.0
    ready: Ready | None = None


@dataclass
class _Clock:
    """Looks as often as the limit asks for."""

    limit: StartLimit
    now_s: float = 0.0

    def hung(self, children: list[_Child], until_s: float) -> list[str]:
        while self.now_s < until_s and not self.limit.overdue(children, self.now_s):
            interval_s = self.limit.interval_s(children)
            self.now_s = until_s if interval_s is None else min(until_s, self.now_s + interval_s)
        return [child.member.title for child, _ in self.limit.overdue(children, self.now_s)]


def test_a_process_that_reports_nothing_is_named_with_what_to_do() -> None:
    clock, child = _Clock(StartLimit(LIMIT_S)), _Child(CACHE)
    assert clock.hung([child], LIMIT_S - 1) == []
    assert clock.hung([child], LIMIT_S) == ["cache_server"]
    ((_, reason),) = clock.limit.overdue([child], clock.now_s)
    assert reason == "it is not ready, and has reported nothing for 80 s (--start-timeout)"


def test_a_process_that_is_ready_is_never_overdue() -> None:
    clock = _Clock(StartLimit(LIMIT_S))
    assert clock.hung([_Child(CACHE, ready=Ready({}))], 10 * LIMIT_S) == []
    assert clock.limit.interval_s([_Child(CACHE, ready=Ready({}))]) is None


def test_a_report_of_one_rank_is_one_of_its_group_and_of_no_other() -> None:
    """The router waits for the ranks, and reports nothing meanwhile."""
    clock, cache, router, ranks = _Clock(StartLimit(LIMIT_S)), _Child(CACHE), _Child(ROUTER), [*map(_Child, RANKS)]
    ranks[1].heard_s = LIMIT_S / 2
    assert clock.hung([cache, router, *ranks], LIMIT_S) == ["cache_server"]
    ranks[0].ready = Ready({})
    assert clock.hung([router, *ranks], 2 * LIMIT_S) == ["router", "model_backend rank 1"]
    assert clock.now_s == 1.5 * LIMIT_S


def test_time_in_which_the_supervisor_was_suspended_does_not_count() -> None:
    clock, child = _Clock(StartLimit(LIMIT_S)), _Child(CACHE)
    assert clock.hung([child], 10.0) == []
    clock.now_s = 10_000.0
    assert clock.hung([child], clock.now_s + LIMIT_S / 2) == []
    assert clock.hung([child], clock.now_s + LIMIT_S) == ["cache_server"]


@pytest.mark.parametrize("age_s", [0.0, 1e9])
def test_no_limit(age_s: float) -> None:
    limit = StartLimit(0.0)
    assert limit.overdue([_Child(CACHE)], age_s) == []
    assert limit.interval_s([_Child(CACHE)]) is None
