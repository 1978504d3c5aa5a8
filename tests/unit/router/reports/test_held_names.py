from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mmserve.cluster.scale.holdings import HoldingsTable
from mmserve.router.reports.held_names import HeldNames


def test_what_was_used_longest_ago_goes_first() -> None:
    held = HeldNames("pictures", 30, 1)
    held.use([1, 2, 3], 10)
    held.use([1], 10)
    held.use([4], 10)
    assert [held.missing([name]) for name in (1, 2, 3, 4)] == [0, 1, 0, 0]


def test_what_no_front_has_named_takes_room_and_is_not_reported() -> None:
    held = HeldNames("blocks", 30, 1)
    held.use([1, 2], 10)
    held.use(["direct"], 20)
    changes = held.changes(snapshot=True)
    assert changes is not None
    assert changes.added == (2,)


def test_names_of_what_takes_no_room_are_bounded_too() -> None:
    held = HeldNames("pictures", 30, 1)
    held.use(range(1 << 16), 0)
    held.use([1 << 16], 0)
    assert held.missing(range(1 << 17)) == 1 << 16
    assert held.missing([0]) == 1


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 9) | st.sampled_from("ab"), max_size=4), st.integers(1, 12), st.booleans()),
        max_size=30,
    )
)
def test_a_table_that_gets_all_reports_knows_what_is_held(uses: list[tuple[list[int | str], int, bool]]) -> None:
    held, table = HeldNames("pictures", 40, 7), HoldingsTable()
    for number, (names, size, snapshot) in enumerate(uses):
        held.use(names, size)
        if (changes := held.changes(snapshot=snapshot or not number)) is not None:
            assert table.apply("a", changes)
        assert {name for name in range(10) if not held.missing([name])} == table.names("a")
