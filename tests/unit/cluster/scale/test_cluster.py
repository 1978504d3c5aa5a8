from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from mmserve.cluster.scale.cluster import Cluster
from mmserve.cluster.scale.loads import ReplicaLoad
from mmserve.cluster.scale.policy import Want
from mmserve.cluster.scale.reports import Holdings, Kind, Load

_COSTS = Load(slots=8, encode_s=0.5, prefill_s=0.001)
_PICTURE = Want(pictures=(7,), tokens=100)


def _cluster(*replicas: str, load: Load = _COSTS) -> Cluster:
    cluster = Cluster()
    cluster.set_replicas(replicas)
    for replica in replicas:
        cluster.load(replica, load, 0.0)
    return cluster


def _hold(cluster: Cluster, replica: str, *names: int, kind: Kind = "pictures") -> None:
    assert cluster.hold(replica, Holdings(kind, 0, 0, names, snapshot=True))


def _chosen(cluster: Cluster, want: Want, now_s: float = 0.0, exclude: tuple[str, ...] = ()) -> str:
    choice = cluster.choose(want, now_s, exclude)
    assert choice is not None
    return choice.replica


def test_a_request_goes_where_its_picture_is() -> None:
    cluster = _cluster(*"abcdefgh")
    _hold(cluster, "e", 7)
    choice = cluster.choose(_PICTURE, 0.0)
    assert choice is not None
    assert (choice.replica, choice.reason) == ("e", "held")
    assert choice.work_s == 100 * _COSTS.prefill_s


def test_a_prompt_goes_where_most_of_it_is_computed() -> None:
    cluster = _cluster(*"abcdefgh")
    _hold(cluster, "b", 1, 2, kind="blocks")
    _hold(cluster, "f", 1, 2, 3, 4, kind="blocks")
    assert _chosen(cluster, Want(blocks=(1, 2, 3, 4, 5), tokens=80)) == "f"
    assert _chosen(cluster, Want(blocks=(1, 2, 13), tokens=48)) in "bf"


def test_without_reports_a_request_counts_for_a_minute_even_where_nothing_more_is_sent() -> None:
    cluster = Cluster()
    cluster.set_replicas("ab")
    assert {_chosen(cluster, Want(), 0.0, exclude=("b",)) for _ in range(20)} == {"a"}
    assert [_chosen(cluster, Want(), 30.0) for _ in range(5)] == ["b"] * 5
    later = [_chosen(cluster, Want(), 95.0) for _ in range(10)]
    assert later.count("a") == later.count("b")


def test_all_fronts_send_a_new_picture_to_the_same_replica() -> None:
    fronts = [_cluster(*"abcdefgh"), _cluster(*"hgfedcba")]
    for name in range(50):
        assert len({_chosen(front, Want((name << 57,), (), 10), float(name)) for front in fronts}) == 1
        for front in fronts:
            for replica in "abcdefgh":
                front.load(replica, _COSTS, name + 0.5)


def test_a_hot_picture_spreads_once_its_queue_costs_more_than_encoding_it() -> None:
    cluster = _cluster(*"abcdefgh")
    _hold(cluster, "a", 7)
    chosen = []
    for _ in range(40):
        replica = _chosen(cluster, _PICTURE)
        chosen.append(replica)
    others = [replica for replica in chosen if replica != "a"]
    assert chosen[:4] == ["a"] * 4
    assert others, "the picture never spread"
    assert chosen.count("a") * 0.1 < 1.5  # its queue is no longer than an encoding and the others' work


def test_requests_for_a_picture_that_is_being_encoded_wait_for_it_where_it_is() -> None:
    """Whatever loads are reported meanwhile, until the picture is reported or its request has failed."""
    cluster = _cluster(*"abcdefgh")
    first = _chosen(cluster, _PICTURE)
    for number in range(1, 5):
        for replica in "abcdefgh":
            cluster.load(replica, _COSTS, number * 0.25)
        choice = cluster.choose(_PICTURE, number * 0.25)
        assert choice is not None
        assert (choice.replica, choice.reason) == (first, "held")
        assert choice.work_s == 100 * _COSTS.prefill_s
    cluster.failed(first, 2.0)
    assert _chosen(cluster, _PICTURE, 2.0) != first


def test_a_picture_that_is_never_reported_is_not_expected_for_ever() -> None:
    cluster = _cluster(*"abcdefgh")
    first = _chosen(cluster, _PICTURE)
    for replica in "abcdefgh":
        cluster.load(replica, Load(slots=8, encode_s=0.5, wait_s=float(replica == first)), 40.0)
    ranked = cluster.ranked(_PICTURE, 40.0)
    assert all(choice.reason != "held" for choice in ranked), "though nothing has been sent since"
    assert ranked[0].replica != first


def test_a_copy_more_is_made_only_where_it_saves_more_than_its_encoding() -> None:
    cluster = _cluster("a", "b")
    _hold(cluster, "a", 7)
    for wait_s, expected in ((0.9, "a"), (1.1, "b")):
        cluster.load("a", Load(slots=8, encode_s=0.5, wait_s=wait_s), 0.0)
        assert cluster.ranked(Want((7,)), 0.0)[0].replica == expected


def test_replicas_that_are_equally_good_share_the_requests() -> None:
    cluster, chosen = _cluster("a", "b"), []
    for second in range(40):
        chosen.append(_chosen(cluster, Want(tokens=100), float(second)))
        for replica in "ab":
            cluster.load(replica, _COSTS, second + 0.5)
    assert chosen.count("a") in range(10, 31)


def test_of_replicas_that_are_equally_good_the_less_busy_one_gets_a_request() -> None:
    cluster = _cluster("a", "b")
    for busy, free in ("ab", "ba"):
        cluster.load(busy, msgspec.structs.replace(_COSTS, in_flight=3), 0.0)
        cluster.load(free, msgspec.structs.replace(_COSTS, prefill_s=0.00101), 0.0)
        assert [choice.replica for choice in cluster.ranked(Want(tokens=100), 0.0)] == [free, busy]


def test_a_report_that_has_seen_the_requests_replaces_the_fronts_own_count() -> None:
    cluster = _cluster("a", "b")
    _hold(cluster, "a", 7)
    for _ in range(3):
        assert _chosen(cluster, _PICTURE, 1.0, ("b",)) == "a"
    for replica in "ab":
        cluster.load(replica, _COSTS, 1.01)  # made before they arrived
    assert _chosen(cluster, Want(tokens=1), 1.01) == "b"
    cluster.load("a", _COSTS, 2.0)
    cluster.load("b", Load(wait_s=0.2), 2.0)
    assert _chosen(cluster, Want(tokens=1), 2.0) == "a"


def test_what_was_sent_to_replicas_that_do_not_report_is_forgotten_after_a_minute() -> None:
    cluster = Cluster()
    cluster.set_replicas("ab")
    for second in range(1000):
        cluster.choose(_PICTURE, float(second))
    loads = cluster._loads.values()  # what they take of memory
    assert sum(load.in_flight for load in loads) <= 2 * 61
    assert cluster._in_flight == sum(load.in_flight for load in loads)


def test_a_decision_looks_at_few_replicas_however_many_there_are() -> None:
    """Also one that finds requests of a minute ago, or that some say nothing any more."""

    class Loads(dict[str, ReplicaLoad]):
        num_looks = 0

        def __getitem__(self, replica: str) -> ReplicaLoad:
            self.num_looks += 1
            return super().__getitem__(replica)

        def values(self) -> Any:
            raise AssertionError("a decision waits until all replicas have been looked at")

        items = values

    cluster = Cluster()
    loads = cluster._loads = Loads()
    cluster.set_replicas(f"r{number}" for number in range(1000))
    object.__setattr__(cluster._policy, "loads", loads)
    for second in range(0, 200, 8):
        for replica in cluster.replicas[second > 90 : 500]:
            cluster.load(replica, _COSTS, second + 0.1)
        loads.num_looks = 0
        cluster.choose(Want((second,)), second + 0.2)
        assert loads.num_looks < 50
    assert cluster._in_flight == sum(load.in_flight for load in dict.values(loads))


def test_an_overloaded_holder_is_avoided_even_where_its_costs_are_unknown() -> None:
    cluster = _cluster(*"abcd", load=Load())
    _hold(cluster, "a", 7)
    counts = dict.fromkeys("abcd", 0)
    for _ in range(400):
        counts[_chosen(cluster, _PICTURE)] += 1
    assert max(counts.values()) <= 1.25 * 100 + 6


def test_one_that_failed_gets_nothing_for_five_seconds_and_then_one_request_tries_it() -> None:
    cluster = _cluster("a", "b")
    _hold(cluster, "a", 7)
    cluster.failed("a", 10.0)
    assert _chosen(cluster, _PICTURE, 14.9) == "b"
    assert _chosen(cluster, _PICTURE, 15.1) == "a"
    assert _chosen(cluster, _PICTURE, 15.1) == "b"
    cluster.answered("a")
    assert _chosen(cluster, _PICTURE, 15.2) == "a"


def test_one_that_says_nothing_while_others_do_gets_one_request_in_five_seconds_until_it_speaks() -> None:
    """As when its processes are suspended: its connections stay, so nothing fails there."""
    cluster = _cluster(*"abc")
    _hold(cluster, "b", 7)
    for quarter in range(1, 41):
        for replica in "ac":
            cluster.load(replica, _COSTS, quarter / 4)
    chosen = [_chosen(cluster, _PICTURE, 10.0 + each) for each in (0.0, 1.0, 4.9, 5.0, 5.1, 9.0)]
    assert [each == "b" for each in chosen] == [False, False, False, True, False, False]
    cluster.load("b", _COSTS, 19.1)
    assert _chosen(cluster, _PICTURE, 19.2) == "b"


def test_an_idle_one_which_reports_once_a_second_is_not_silent_beside_a_busy_one() -> None:
    """It wakes once a second, or a little later."""
    cluster = _cluster("busy", "idle")
    _hold(cluster, "idle", 7)
    for quarter in range(41):
        if quarter % 5 == 0:
            cluster.load("idle", _COSTS, quarter / 4)
        cluster.load("busy", _COSTS, quarter / 4 + 0.24)
        assert _chosen(cluster, _PICTURE, quarter / 4 + 0.245) == "idle"


def test_one_that_answers_without_reports_is_not_avoided() -> None:
    cluster = _cluster("a", "b")
    cluster.load("a", _COSTS, 10.0)
    assert {_chosen(cluster, Want(), 10.0) for _ in range(9)} == {"a"}
    cluster.answered("b")
    assert "b" in {_chosen(cluster, Want(), 10.5) for _ in range(9)}


def test_one_that_says_nothing_for_seconds_while_others_do_is_mute_until_it_speaks_or_leaves() -> None:
    cluster = _cluster(*"abc")
    for now_s in (1.0, 2.0, 2.9):
        for replica in "bc":
            cluster.load(replica, _COSTS, now_s)
        assert cluster.mute(now_s) == []
    assert cluster.mute(60.0) == [], "the others have said nothing either"
    cluster.load("b", _COSTS, 3.1)
    assert cluster.mute(3.1) == ["a"]
    cluster.load("a", _COSTS, 3.2)
    assert cluster.mute(3.2) == []
    cluster.load("b", _COSTS, 9.0)
    assert sorted(cluster.mute(9.0)) == ["a", "c"]
    cluster.set_replicas("ac")
    assert cluster.mute(9.0) == [], "nobody is left that says anything"
    cluster.set_replicas("c")
    assert cluster.mute(9.0) == []


def test_none_is_silent_beside_others_that_are_as_late() -> None:
    cluster = _cluster("a", "b")
    assert {_chosen(cluster, Want(), 30.0) for _ in range(20)} == {"a", "b"}


def test_where_all_are_avoided_one_of_them_is_asked_all_the_same() -> None:
    cluster = _cluster("a", "b")
    for replica in "ab":
        cluster.failed(replica, 0.0)
    assert _chosen(cluster, _PICTURE, 1.0) in "ab"
    cluster.answered("b")
    assert {_chosen(cluster, _PICTURE, 1.0, exclude=("b",)) for _ in range(20)} == {"a"}, "b has had this request"
    assert _chosen(cluster, _PICTURE, 1.0, exclude=("a", "b")) in "ab"


def test_the_only_one_left_is_found_even_if_chance_and_ring_name_others() -> None:
    names = [f"node{number}" for number in range(100)]
    cluster = _cluster(*names)
    assert _chosen(cluster, _PICTURE, exclude=tuple(names[:-1])) == names[-1]


def test_without_replicas_there_is_no_choice() -> None:
    assert Cluster().choose(_PICTURE, 0.0) is None


def test_a_replica_that_left_is_never_chosen_and_its_late_reports_are_ignored() -> None:
    cluster = _cluster("a", "b")
    _hold(cluster, "a", 7)
    cluster.choose(_PICTURE, 0.0)
    cluster.set_replicas(["b"])
    assert cluster.hold("a", Holdings("pictures", 0, 1, (9,)))
    cluster.load("a", _COSTS, 1.0)
    cluster.failed("a", 1.0)
    assert cluster.replicas == ("b",)
    assert _chosen(cluster, _PICTURE) == "b"
    assert len(cluster.tables["pictures"]) == 0


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 300)), max_size=60),
    st.lists(st.integers(0, 4), max_size=5, unique=True),
)
def test_the_choice_is_one_of_the_replicas_and_never_one_to_avoid_while_there_are_others(
    requests: list[tuple[int, int]], excluded: list[int]
) -> None:
    names = [f"n{number}" for number in range(5)]
    exclude = tuple(names[number] for number in excluded)
    cluster = _cluster(*names)
    for number, (picture, tokens) in enumerate(requests):
        replica = _chosen(cluster, Want((picture,), (), tokens), number * 0.01, exclude)
        assert replica in names
        assert replica not in exclude or len(exclude) == len(names)
    assert sum(cluster.decisions.values()) == len(requests)
