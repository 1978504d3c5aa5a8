from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mmserve.cluster.scale.ring import Ring

_NAMES = [(number * 0x9E3779B97F4A7C15) % 2**64 for number in range(2000)]
_IDS = st.lists(st.text("abcdef", min_size=1, max_size=4), min_size=1, max_size=8, unique=True)


def _ring(replicas: list[str]) -> Ring:
    ring = Ring()
    ring.add(replicas)
    return ring


@given(_IDS, st.integers(0, 2**64 - 1))
def test_the_order_of_joining_does_not_matter_and_owners_are_different(replicas: list[str], name: int) -> None:
    other = _ring(replicas[:1])
    other.add(replicas[:0:-1])
    owners = _ring(replicas).owners(name, 3)
    assert owners == other.owners(name, 3)
    assert len(set(owners)) == len(owners) == min(3, len(replicas))


def test_who_leaves_moves_only_its_own_names() -> None:
    ring = _ring(["a", "b", "c", "d"])
    before = [ring.owners(name, 2) for name in _NAMES]
    ring.remove("c")
    after = [ring.owners(name, 1)[0] for name in _NAMES]
    assert after == [owners[0] if owners[0] != "c" else owners[1] for owners in before]


def test_names_spread_over_all() -> None:
    ring = _ring([f"node{number}" for number in range(10)])
    owners = [ring.owners(name, 1)[0] for name in _NAMES]
    assert min(map(owners.count, set(owners))) > 100
    assert len(set(owners)) == 10


def test_an_empty_ring_has_no_owners() -> None:
    assert Ring().owners(1, 2) == []
