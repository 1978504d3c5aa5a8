"""Requests that share images: whatever happens to them, no image is claimed twice, decoded twice at once, or lost."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from mmserve.messages.request import EngineInbound, GenerateRequest
from mmserve.visualserver.batch_queue import ENCODED, BatchQueue, Claim, PendingRequest, item_ids
from tests.unit.visualserver.test_batch_queue import PIXELS_NBYTES, _begin, _ids, _request


def _add(batcher: BatchQueue, **items: tuple[int, ...]) -> None:
    for name, of_it in items.items():
        assert batcher.add(_request(name, *of_it), 0.0) == []


def _claims(batcher: BatchQueue) -> list[tuple[str, int]]:
    """(request, number of images) of each."""
    return [(claim.held.request.id, claim.nbytes // PIXELS_NBYTES) for claim in batcher.claims()]


def test_an_image_that_several_wait_for_is_claimed_by_the_first_of_them() -> None:
    batcher = BatchQueue(8)
    _add(batcher, a=(1,), b=(1, 2), c=(3,), d=(1,))
    assert _claims(batcher) == [("a", 1), ("c", 1)]
    batcher.drop("a")
    assert _claims(batcher) == [("b", 2), ("c", 1)]
    assert _begin(batcher) == ["b", "c"]
    assert _ids(batcher.next_batch()) == [1, 2, 3]


def test_who_shares_an_image_claims_its_others_once_that_has_begun() -> None:
    batcher = BatchQueue(max_images=2)
    _add(batcher, a=(1, 2, 3), b=(3, 4))
    assert _begin(batcher) == ["a"]
    assert _ids(batcher.next_batch()) == [1, 2]
    assert _claims(batcher) == [], "the third image is to be decoded in the turn that is on"
    assert _ids(batcher.next_batch()) == [3]
    assert _claims(batcher) == [("b", 1)]


def test_who_follows_has_claimed_its_images() -> None:
    batcher = BatchQueue(8)
    _add(batcher, a=(1,), b=(2,), c=(2,))
    first, second = batcher.claims()
    batcher.begin(first.held)
    batcher.follow(second.held)
    assert _claims(batcher) == []
    batcher.drop("b")
    assert _claims(batcher) == [("c", 1)]


class Play:
    """A batcher, and what its pipeline does to it at random moments."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.batcher = BatchQueue(self.draw.randint(1, 3))
        self.waiting: dict[str, set[int]] = {}
        """Request -> its images that are not encoded."""
        self.claimed: dict[str, set[int]] = {}
        """Request that has a turn, or follows -> the images that it asked for."""
        self.asking: list[Claim] = []
        self.decoding: list[tuple[int, ...]] = []
        self.encoding: list[tuple[int, ...]] = []
        self.num_requests = 0

    @property
    def in_flight(self) -> set[int]:
        return {item for batch in self.decoding + self.encoding for item in batch}

    def add(self) -> None:
        name, items = f"r{self.num_requests}", self.draw.sample(range(6), self.draw.randint(1, 3))
        self.num_requests += 1
        self.waiting[name] = set(items)
        assert self.batcher.add(_request(name, *items), 0.0) == []

    def drop(self) -> None:
        name = self.draw.choice([*self.waiting, "unknown"])
        self.batcher.drop(name)
        self._over(name)

    def ask(self) -> None:
        if self.asking:
            return
        taken = {item for items in self.claimed.values() for item in items} - self.in_flight
        self.asking = self.batcher.claims()
        for claim in self.asking:
            idle = self.waiting[claim.held.request.id] - self.in_flight
            assert idle
            assert claim.nbytes == PIXELS_NBYTES * len(idle)
            assert not idle & taken, "another request claims it"
            taken |= idle

    def reply(self) -> None:
        """Some turns come, in order; one may be the next."""
        come = self.draw.randint(0, len(self.asking))
        for claim in self.asking[:come]:
            self._granted(claim.held)
            self.batcher.begin(claim.held)
        if self.asking[come:] and self.batcher.following is None:
            self._granted(self.asking[come].held)
            self.batcher.follow(self.asking[come].held)
        self.asking = []

    def decode(self) -> None:
        batch = self.batcher.next_batch()
        if batch is None:
            return
        images = item_ids(batch.images)
        assert not self.in_flight & set(images), "it is decoded or encoded already"
        for image in images:
            assert sum(image in items for items in self.claimed.values()) == 1, "counted once, before it is decoded"
        self.decoding.append(images)

    def take(self) -> None:
        if self.decoding:
            self.encoding.append(self.decoding.pop(0))
            self.batcher.turns.taken(self.encoding[-1])

    def finish(self) -> None:
        if self.encoding:
            encoded = self.encoding.pop(0)
            for items in (*self.waiting.values(), *self.claimed.values()):
                items.difference_update(encoded)
            self._complete(self.batcher.finish(dict.fromkeys(encoded, ENCODED)))

    def _complete(self, sent: list[EngineInbound]) -> None:
        assert {message.id for message in sent} == {name for name, items in self.waiting.items() if not items}
        for message in sent:
            assert isinstance(message, GenerateRequest)
            self._over(message.id)

    def _granted(self, held: PendingRequest) -> None:
        if self.batcher.holds(held):
            self.claimed[held.request.id] = self.waiting[held.request.id] - self.in_flight

    def _over(self, name: str) -> None:
        self.waiting.pop(name, None)
        self.claimed.pop(name, None)


@given(seed=st.integers(0, 1 << 30))
def test_no_image_is_claimed_twice_and_none_is_forgotten(seed: int) -> None:
    play = Play(seed)
    events = (play.add, play.drop, play.ask, play.reply, play.decode, play.take, play.finish)
    for _ in range(60):
        play.draw.choice(events)()
    for _ in range(20 * play.num_requests):
        for event in (play.ask, play.reply, play.decode, play.take, play.finish):
            event()
    assert not play.waiting, "everybody who stayed has all images"
    assert len(play.batcher) == 0
