from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mmserve.cluster.scale.holdings import HoldingsTable
from mmserve.cluster.scale.reports import Holdings


def _report(number: int, added: tuple[int, ...] = (), removed: tuple[int, ...] = (), **rest: object) -> Holdings:
    return Holdings("pictures", 0, number, added, removed, **rest)  # type: ignore[arg-type]


def test_increments_follow_a_snapshot() -> None:
    table = HoldingsTable()
    assert table.apply("a", _report(3, (1, 2), snapshot=True))
    assert table.apply("a", _report(4, (3,), (1,)))
    assert table.names("a") == {2, 3}
    assert table.holders(1) == []
    assert table.holders(3) == ["a"]


def test_a_gap_asks_for_a_snapshot_and_what_is_known_stays_in_use() -> None:
    table = HoldingsTable()
    table.apply("a", _report(0, (1,), snapshot=True))
    assert not table.apply("a", _report(2, (2,)))
    assert not table.apply("a", _report(3, (3,)))
    assert table.names("a") == {1}
    assert table.apply("a", _report(3, (2, 3), snapshot=True))
    assert table.apply("a", _report(4, (), (2,)))
    assert table.names("a") == {3}


def test_an_increment_before_any_snapshot_is_a_gap() -> None:
    assert not HoldingsTable().apply("a", _report(0, (1,)))


def test_reports_that_come_twice_or_late_change_nothing() -> None:
    table = HoldingsTable()
    table.apply("a", _report(5, (1,), snapshot=True))
    assert table.apply("a", _report(5, (), (1,)))
    assert table.apply("a", _report(4, (9,), snapshot=True))
    assert table.names("a") == {1}


def test_what_a_replica_held_before_its_restart_is_forgotten_at_the_first_report_after_it() -> None:
    table = HoldingsTable()
    table.apply("a", _report(0, (1, 2), snapshot=True))
    assert not table.apply("a", Holdings("pictures", 1, 7, (5,)))
    assert table.names("a") == set()
    assert table.apply("a", Holdings("pictures", 1, 8, (5,), snapshot=True))
    assert table.names("a") == {5}


def test_a_replica_that_leaves_holds_nothing() -> None:
    table = HoldingsTable()
    for replica in ("a", "b"):
        table.apply(replica, _report(0, (1, 2), snapshot=True))
    table.forget("a")
    assert table.holders(1) == ["b"]
    table.forget("b")
    assert len(table) == 0


_STEPS = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.frozensets(st.integers(0, 9), max_size=4),
        st.frozensets(st.integers(0, 9), max_size=4),
        st.booleans(),
    ),
    max_size=30,
)


@given(_STEPS)
def test_both_directions_of_the_table_agree_with_a_plain_model(
    steps: list[tuple[str, frozenset[int], frozenset[int], bool]],
) -> None:
    table, model, numbers = HoldingsTable(), {each: set[int]() for each in "abc"}, dict.fromkeys("abc", -1)
    for replica, added, removed, snapshot in steps:
        numbers[replica] += 1
        snapshot = snapshot or not numbers[replica]
        report = _report(numbers[replica], tuple(added), () if snapshot else tuple(removed), snapshot=snapshot)
        assert table.apply(replica, report)
        model[replica] = set(added) if snapshot else (model[replica] - removed) | added
    for replica, names in model.items():
        assert table.names(replica) == names
    for name in range(10):
        assert sorted(table.holders(name)) == [each for each in "abc" if name in model[each]]
    assert len(table) == len(set().union(*model.values()))
