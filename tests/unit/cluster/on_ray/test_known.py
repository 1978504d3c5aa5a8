"""What a front knows of Ray's replicas. Without Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from mmserve.cluster.front.replicas import Replica
from mmserve.cluster.on_ray.asked import Asked
from mmserve.cluster.on_ray.known import KnownReplicas
from mmserve.cluster.scale.cluster import Cluster
from mmserve.cluster.scale.policy import Want
from mmserve.cluster.scale.reports import Holdings, Load

_WANT = Want(pictures=(7,), tokens=10)


def _metadata(*names: str, generation: int = 0) -> dict[str, dict[str, str]]:
    return {
        f"ray-{name}-{generation}": {"id": name, "url": f"http://{name}:{generation}", "reports": f"tcp://{name}:1"}
        for name in names
    }


def _known(*names: str) -> KnownReplicas:
    known = KnownReplicas()
    known.set(_metadata(*names))
    return known


def _asked(want: Want = _WANT, exclude: Collection[str] = ()) -> Asked:
    async def made() -> Asked:
        return Asked(want, dict.fromkeys(exclude, 0), 60.0)

    return asyncio.run(made())


def _ranked(known: KnownReplicas, want: Want = _WANT, exclude: Collection[str] = ()) -> list[str]:
    return list(known.ranked(_asked(want, exclude)))


def test_replicas_are_ranked_by_what_they_hold_and_all_are_offered() -> None:
    known = _known("a", "b", "c", "d", "e", "f", "g", "h")
    known.load("f", Load(encode_s=1.0), 0.0)
    known.hold("f", Holdings("pictures", 0, 0, (7,), snapshot=True))
    for name in "abcdegh":
        known.load(name, Load(encode_s=1.0), 0.0)
    ranked = _ranked(known)
    assert ranked[0] == "ray-f-0"
    assert sorted(ranked) == sorted(_metadata(*"abcdefgh"))


def test_those_that_have_failed_the_request_come_last() -> None:
    for _ in range(10):
        assert _ranked(_known("a", "b", "c"), exclude=("b",))[-1] == "ray-b-0"


def test_who_asked_knows_what_is_offered() -> None:
    names = [str(number) for number in range(100)]
    known, asked = _known(*names), _asked()
    offered = []
    for each in known.ranked(asked):
        assert asked.choice is not None
        offered.append(asked.choice.replica)
        assert each == f"ray-{offered[-1]}-0"
    assert sorted(offered) == sorted(names)


def test_a_replica_keeps_its_place_when_it_starts_again_under_another_name_of_rays() -> None:
    known = _known("a", "b")
    known.hold("a", Holdings("pictures", 0, 0, (7,), snapshot=True))
    known.set(_metadata("a", generation=1) | _metadata("b"))
    assert known.cluster.replicas == ("a", "b")
    assert set(_ranked(known)) == {"ray-a-1", "ray-b-0"}


def test_reports_wait_for_the_thread_of_rays_router() -> None:
    """Otherwise a replica could leave while its report is applied, and be chosen ever after."""
    known = _known("a")
    seen: list[bool] = []

    class Watched(Cluster):
        def load(self, replica: str, load: Load, now_s: float) -> None:
            seen.append(known._lock.locked())

        def hold(self, replica: str, report: Holdings) -> bool:
            seen.append(known._lock.locked())
            return True

    known.cluster = Watched()
    known.load("a", Load(), 0.0)
    known.hold("a", Holdings("pictures", 0, 0, snapshot=True))
    assert seen == [True, True]


def test_a_change_is_told_once_and_one_without_an_address_is_not_there_yet() -> None:
    known, told = KnownReplicas(), list[Sequence[Replica]]()
    known.watch(told.append)
    known.set({"ray-x-0": {}})
    for _ in range(2):
        known.set(_metadata("a"))
    assert told == [(), (Replica("a", "http://a:0", "tcp://a:1"),)]


def test_a_burst_is_spread_though_ray_takes_no_replica_before_all_were_decided() -> None:
    known = _known("a", "b")
    known.load("a", Load(prefill_s=0.001), 0.0)
    known.load("b", Load(prefill_s=0.010), 0.0)
    chosen = [next(known.ranked(_asked(Want(tokens=40)))) for _ in range(40)]
    assert 10 <= chosen.count("ray-b-0") <= 20, "the bound of what one may have above the mean"


def test_a_replica_that_was_looked_at_and_not_taken_does_not_count_as_having_the_request() -> None:
    known = _known("a", "b")
    for name in "ab":
        known.load(name, Load(prefill_s=0.001), 0.0)
    for _ in range(50):
        list(known.ranked(_asked(Want(tokens=40))))
    assert [load.in_flight for load in known.cluster._loads.values()] == [0, 0]
    assert known.cluster._in_flight == 0


def test_what_is_offered_counts_until_a_report_and_nothing_is_ranked_again() -> None:
    known = _known("a", "b")
    for name in "ab":
        known.load(name, Load(encode_s=1.0), 0.0)
    asked = _asked()
    first = next(known.ranked(asked))
    ranked, known.cluster.ranked = known.cluster.ranked, None  # type: ignore[method-assign, assignment]
    known.sent(asked)
    known.cluster.ranked = ranked  # type: ignore[method-assign]
    assert next(known.ranked(_asked(Want(tokens=1)))) != first
    assert known.cluster.decisions == {"owner": 1}
