"""Requests that share images: each image is counted under one permit, decoded once at a time, and never lost."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from mmserve.messages.request import ImagesEncoded
from mmserve.visualserver.images import ENCODED, item_ids
from mmserve.visualserver.queue.batch_queue import Answer, BatchQueue
from mmserve.visualserver.queue.pending_request import PendingRequest, PermitCandidate
from tests.unit.visualserver.queue.test_batch_queue import PIXELS_NBYTES, _grant_all, _ids, _request


def _add(queue: BatchQueue, **items: tuple[int, ...]) -> None:
    for name, ids in items.items():
        assert queue.add(_request(name, *ids), 0.0) == []


def _candidates(queue: BatchQueue) -> list[tuple[str, int]]:
    """(request id, number of images) of each candidate."""
    return [
        (candidate.pending.request.id, candidate.nbytes // PIXELS_NBYTES) for candidate in queue.permit_candidates()
    ]


def test_of_requests_that_share_an_image_only_the_first_is_a_candidate() -> None:
    queue = BatchQueue(8)
    _add(queue, a=(1,), b=(1, 2), c=(3,), d=(1,))
    assert _candidates(queue) == [("a", 1), ("c", 1)]
    queue.drop("a")
    assert _candidates(queue) == [("b", 2), ("c", 1)]
    assert _grant_all(queue) == ["b", "c"]
    assert _ids(queue.next_batch()) == [1, 2, 3]


def test_a_request_is_a_candidate_once_its_shared_image_has_started() -> None:
    queue = BatchQueue(max_images=2)
    _add(queue, a=(1, 2, 3), b=(3, 4))
    assert _grant_all(queue) == ["a"]
    assert _ids(queue.next_batch()) == [1, 2]
    assert _candidates(queue) == [], "the third image will be decoded under the current permit"
    assert _ids(queue.next_batch()) == [3]
    assert _candidates(queue) == [("b", 1)]


def test_images_of_a_promised_request_are_covered_by_its_permit() -> None:
    queue = BatchQueue(8)
    _add(queue, a=(1,), b=(2,), c=(2,))
    first, second = queue.permit_candidates()
    queue.grant(first.pending)
    queue.promise(second.pending)
    assert _candidates(queue) == []
    queue.drop("b")
    assert _candidates(queue) == [("c", 1)]


def test_an_image_that_another_machine_gives_back_after_its_permit_has_ended_needs_a_new_one() -> None:
    queue = BatchQueue(4)
    _add(queue, a=(1, 2))
    _, away = queue.waiting_images(9)
    queue.take(away)
    assert _grant_all(queue) == ["a"]
    batch = queue.next_batch()
    assert batch is not None
    assert _ids(batch) == [1]
    queue.permits.decoded(item_ids(batch.images))
    (ended,) = queue.permits.take_ended()
    queue.give_back(away)
    assert queue.next_batch() is None, "nothing is decoded without a permit"
    (candidate,) = queue.permit_candidates()
    assert candidate.nbytes == PIXELS_NBYTES
    assert candidate.permit_request.name != ended, "its release may reach the cache server later"
    queue.grant(candidate.pending)
    assert _ids(queue.next_batch()) == [2]


def test_an_image_that_another_machine_gives_back_is_decoded_under_a_permit_that_is_open() -> None:
    queue = BatchQueue(4)
    _add(queue, a=(1,))
    (waiting,) = queue.waiting_images(9)
    (candidate,) = queue.permit_candidates()
    queue.take(waiting)
    queue.grant(candidate.pending)
    queue.give_back(waiting)
    assert _ids(queue.next_batch()) == [1]


def test_a_permit_ends_if_another_machine_has_encoded_all_images_before_one_is_started_under_it() -> None:
    queue = BatchQueue(4)
    _add(queue, a=(1,))
    (waiting,) = queue.waiting_images(9)
    (candidate,) = queue.permit_candidates()
    queue.take(waiting)
    queue.grant(candidate.pending)
    assert queue.finish({1: ENCODED}, 1.0) != []
    assert queue.permits.take_ended() == [candidate.permit_request.name]
    assert queue.permits.all_closed, "else no promised request starts"


class RandomPipeline:
    """A queue and random calls as the pipeline makes them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.queue = BatchQueue(self.random.randint(1, 3))
        self.missing: dict[str, set[int]] = {}
        """Request id -> its images that are not encoded."""
        self.covered: dict[str, set[int]] = {}
        """Request id -> images covered by its permit, granted or promised."""
        self.asking: list[PermitCandidate] = []
        self.decoding: list[tuple[int, ...]] = []
        self.encoding: list[tuple[int, ...]] = []
        self.num_requests = 0
        self.num_images: dict[str, int] = {}
        self.told: dict[str, int] = {}
        """Request id -> images of it that were reported as encoded."""

    @property
    def in_flight(self) -> set[int]:
        return {item for batch in self.decoding + self.encoding for item in batch}

    def add(self) -> None:
        name, items = f"r{self.num_requests}", self.random.sample(range(6), self.random.randint(1, 3))
        self.num_requests += 1
        self.missing[name] = set(items)
        self.num_images[name] = len(items)
        assert self.queue.add(_request(name, *items), 0.0) == []

    def drop(self) -> None:
        name = self.random.choice([*self.missing, "unknown"])
        self.queue.drop(name)
        self._forget(name)

    def request_permits(self) -> None:
        if self.asking:
            return
        covered = {item for items in self.covered.values() for item in items} - self.in_flight
        self.asking = self.queue.permit_candidates()
        for candidate in self.asking:
            idle = self.missing[candidate.pending.request.id] - self.in_flight
            assert idle
            assert candidate.nbytes == PIXELS_NBYTES * len(idle)
            assert not idle & covered, "covered by another permit"
            covered |= idle

    def reply(self) -> None:
        """Grant some permits in order, and perhaps promise the next one."""
        num_granted = self.random.randint(0, len(self.asking))
        for candidate in self.asking[:num_granted]:
            self._cover(candidate.pending)
            self.queue.grant(candidate.pending)
        if self.asking[num_granted:] and self.queue.promised is None:
            self._cover(self.asking[num_granted].pending)
            self.queue.promise(self.asking[num_granted].pending)
        self.asking = []

    def decode(self) -> None:
        batch = self.queue.next_batch()
        if batch is None:
            return
        images = item_ids(batch.images)
        assert not self.in_flight & set(images), "already in flight"
        for image in images:
            assert sum(image in items for items in self.covered.values()) == 1, "covered by exactly one permit"
        self.decoding.append(images)

    def hand_to_encoder(self) -> None:
        if self.decoding:
            self.encoding.append(self.decoding.pop(0))
            self.queue.permits.decoded(self.encoding[-1])

    def finish(self) -> None:
        if self.encoding:
            encoded = self.encoding.pop(0)
            for items in (*self.missing.values(), *self.covered.values()):
                items.difference_update(encoded)
            self._complete(self.queue.finish(dict.fromkeys(encoded, ENCODED), 0.0))

    def _complete(self, answers: list[Answer]) -> None:
        for message in answers:
            assert isinstance(message, ImagesEncoded)
            self.told[message.id] = self.told.get(message.id, 0) + len(message.item_ids)
        for name in [name for name, items in self.missing.items() if not items]:
            assert self.told[name] == self.num_images[name], "each image is told once"
            self._forget(name)

    def _cover(self, pending: PendingRequest) -> None:
        if self.queue.is_pending(pending):
            self.covered[pending.request.id] = self.missing[pending.request.id] - self.in_flight

    def _forget(self, name: str) -> None:
        self.missing.pop(name, None)
        self.covered.pop(name, None)


@given(seed=st.integers(0, 1 << 30))
def test_every_image_has_exactly_one_permit_and_every_request_completes(seed: int) -> None:
    pipeline = RandomPipeline(seed)
    stages = (pipeline.request_permits, pipeline.reply, pipeline.decode, pipeline.hand_to_encoder, pipeline.finish)
    for _ in range(60):
        pipeline.random.choice((pipeline.add, pipeline.drop, *stages))()
    for _ in range(20 * pipeline.num_requests):
        for stage in stages:
            stage()
    assert not pipeline.missing, "every request that was not dropped is complete"
    assert len(pipeline.queue) == 0
