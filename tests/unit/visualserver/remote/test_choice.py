"""A picture goes where it is ready first; equal pictures go to one encoder."""

from __future__ import annotations

from collections import Counter

import pytest

from mmserve.visualserver.remote.choice import Candidate, Pace, choose

MIB = 1 << 20


def encoder(name: str, waiting: int = 0, image_s: float | None = 0.1, byte_s: float = 1e-9) -> Candidate:
    return Candidate(name, waiting, Pace(image_s, byte_s))


@pytest.mark.parametrize(
    ("ahead", "byte_s", "goes"),
    [
        (0, 1e-9, False),  # idle: the way costs more than the wait
        (1, 1e-9, True),
        (1, 1e-7, False),  # 0.4 s of transfer
        (6, 1e-7, True),
    ],
)
def test_seconds_decide(ahead: int, byte_s: float, goes: bool) -> None:
    chosen = choose(b"k", 4 * MIB, [encoder("a", byte_s=byte_s)], Pace(0.1), ahead)
    assert (chosen is not None) == goes


def test_nothing_is_sent_before_this_machine_knows_its_own_pace() -> None:
    assert choose(b"k", 1, [encoder("a")], Pace(), 100) is None
    assert choose(b"k", 1, [], Pace(0.1), 100) is None


def test_a_busy_or_slow_encoder_gets_less() -> None:
    assert choose(b"k", 1, [encoder("a", waiting=9)], Pace(0.1), 5) is None
    assert choose(b"k", 1, [encoder("a", image_s=2.0)], Pace(0.1), 5) is None


def test_an_encoder_that_was_not_measured_is_taken_for_as_fast_as_this_machine() -> None:
    assert choose(b"k", 1, [encoder("a", image_s=None)], Pace(0.1), 1) is not None


def test_equal_pictures_go_to_one_encoder_and_others_are_spread() -> None:
    encoders = [encoder(name) for name in "abc"]
    owners = {n: choose(b"%d" % n, 1, encoders, Pace(0.1), 9) for n in range(300)}
    counts = Counter(owner.name for owner in owners.values() if owner is not None)
    assert sorted(counts) == ["a", "b", "c"]
    assert min(counts.values()) > 70
    assert all(choose(b"%d" % n, 1, encoders[::-1], Pace(0.1), 9) == owner for n, owner in owners.items())


def test_the_owner_of_a_picture_is_passed_over_when_it_is_more_than_a_picture_behind() -> None:
    owner = choose(b"k", 1, [encoder("a"), encoder("b")], Pace(0.1), 9)
    assert owner is not None
    other = "b" if owner.name == "a" else "a"
    for waiting, expected in ((1, owner.name), (3, other)):
        chosen = choose(b"k", 1, [encoder(owner.name, waiting), encoder(other)], Pace(0.1), 9)
        assert chosen is not None
        assert chosen.name == expected


def test_paces_follow_measurements() -> None:
    pace = Pace()
    pace.encoded(1.0)
    pace.encoded(2.0)
    assert pace.image_s == pytest.approx(1.2)
    pace.transferred(1000, 1.0)
    assert 1e-8 < pace.byte_s < 1e-3
    pace.transferred(1000, -5.0)  # clocks of two machines differ
    assert pace.byte_s > 0
