"""Choice of the next images, and which requests are complete or aborted by their outcomes."""

from __future__ import annotations

from msgspec import structs

from mmserve.messages.media import Handle, MediaSpan
from mmserve.messages.request import AbortRequest, EncodeRequest, ImagesEncoded, WorkerDied, choice_id
from mmserve.visualserver.images import ENCODED, Outcome
from mmserve.visualserver.queue.batch_queue import Answer, BatchQueue
from mmserve.visualserver.queue.image_tasks import ImageBatch

PIXELS_NBYTES = 1000


def _request(name: str, *item_ids: int, attempt: int = 0, number: int = 0) -> EncodeRequest:
    spans = tuple(
        MediaSpan(
            start=10 * index,
            num_tokens=4,
            item_id=item_id,
            data=Handle(item_id, 0, 1),
            embed=Handle(item_id + 1, 64, 1),
            media_index=index,
            decoded_nbytes=PIXELS_NBYTES,
        )
        for index, item_id in enumerate(item_ids)
    )
    return EncodeRequest(id=name, reply_to=3, spans=spans, arrival_s=0.0, attempt=attempt, number=number)


def _encoded(name: str, *item_ids: int, attempt: int = 0) -> ImagesEncoded:
    return ImagesEncoded(id=name, attempt=attempt, item_ids=item_ids)


def _ids(batch: ImageBatch | None) -> list[int]:
    return [] if batch is None else [image.item_id for image in batch.images]


def _grant_all(queue: BatchQueue) -> list[str]:
    """Grant every request a permit. Returns the request ids."""
    granted = []
    while candidates := queue.permit_candidates():
        for candidate in candidates:
            queue.grant(candidate.pending)
            granted.append(candidate.pending.request.id)
    return granted


def _next(queue: BatchQueue) -> ImageBatch | None:
    """Grant every request a permit and take the next batch."""
    _grant_all(queue)
    return queue.next_batch()


def _finish(queue: BatchQueue, outcomes: dict[int, Outcome]) -> list[Answer]:
    """The messages without the times of their stages."""
    messages = queue.finish(outcomes, now_s=0.0)
    return [
        structs.replace(message, stage_times={}) if isinstance(message, ImagesEncoded) else message
        for message in messages
    ]


def test_a_complete_request_has_the_time_of_its_stages() -> None:
    queue = BatchQueue(max_images=4)
    queue.add(_request("first", 1), 10.0)
    queue.add(_request("sharing", 1), 11.0)
    batch = _next(queue)
    assert batch is not None
    (first,) = batch.first_started
    first.started_s, first.decoded_s = 12.0, 14.5
    times = [message.stage_times for message in queue.finish({1: ENCODED}, now_s=15.0)]  # type: ignore[union-attr]
    assert times == [{"turn": 2.0, "image_decode": 2.5, "encode": 0.5}, {"encode": 4.0}]


def test_a_batch_has_images_of_several_requests_in_order_of_arrival() -> None:
    queue = BatchQueue(max_images=4)
    for name, items in (("a", (1, 2)), ("b", (3,)), ("c", (4, 5))):
        assert queue.add(_request(name, *items), 0.0) == []
    first = _next(queue)
    assert _ids(first) == [1, 2, 3, 4]
    assert first is not None
    assert [pending.request.id for pending in first.first_started] == ["a", "b", "c"]
    second = _next(queue)
    assert _ids(second) == [5]
    assert second is not None
    assert second.first_started == ()
    assert _next(queue) is None


def test_an_image_is_encoded_once_for_all_requests_that_need_it() -> None:
    queue = BatchQueue(8)
    names = [f"r{n}" for n in range(32)]
    requests = [_request(name, 7, 7) for name in names]
    for request in requests[:31]:
        queue.add(request, 0.0)
    assert _ids(_next(queue)) == [7]
    queue.add(requests[31], 0.0)
    assert _next(queue) is None
    assert _finish(queue, {7: ENCODED}) == [_encoded(name, 7) for name in names]
    assert len(queue) == 0


def test_each_image_is_told_as_soon_as_it_is_encoded() -> None:
    queue = BatchQueue(1)
    queue.add(_request("a", 1, 2), 0.0)
    assert _ids(_next(queue)) == [1]
    (first,) = queue.finish({1: ENCODED}, now_s=1.0)
    assert (first, len(queue)) == (_encoded("a", 1), 1), "without the times of stages that have not ended"
    assert _ids(_next(queue)) == [2]
    assert _finish(queue, {2: ENCODED}) == [_encoded("a", 2)]
    assert len(queue) == 0


def test_a_request_for_no_image_is_answered_at_once() -> None:
    queue = BatchQueue(8)
    assert queue.add(_request("a"), 0.0) == [_encoded("a")]
    assert len(queue) == 0


def test_a_failed_image_aborts_only_the_requests_that_need_it() -> None:
    queue = BatchQueue(8)
    for request in (_request("good", 1), _request("bad", 2), _request("both", 1, 2, 3)):
        queue.add(request, 0.0)
    assert [_ids(_next(queue)) for _ in range(2)] == [[1, 2], [3]]
    outbound = _finish(queue, {1: ENCODED, 2: Outcome("media_error", "it is broken"), 3: ENCODED})
    assert outbound[0] == _encoded("good", 1)
    assert outbound[1:] == [
        AbortRequest(id="bad", reply_to=3, reason="media_error", message="it is broken", media_index=0),
        AbortRequest(id="both", reply_to=3, reason="media_error", message="it is broken", media_index=1),
    ]
    assert len(queue) == 0
    assert _next(queue) is None


def test_images_needed_only_by_a_failed_request_are_not_encoded() -> None:
    queue = BatchQueue(1)
    queue.add(_request("a", 1, 2), 0.0)
    _next(queue)
    _finish(queue, {1: Outcome("media_error", "")})
    assert _next(queue) is None


def test_dropping_a_request_removes_images_that_no_other_request_needs() -> None:
    queue = BatchQueue(8)
    queue.add(_request("a", 1, 2), 0.0)
    queue.add(_request("b", 2), 0.0)
    queue.drop("a")
    queue.drop("a")
    assert _ids(_next(queue)) == [2]
    assert _finish(queue, {2: ENCODED}) == [_encoded("b", 2)]


def test_a_request_dropped_while_its_image_is_in_flight_is_not_answered() -> None:
    queue = BatchQueue(8)
    queue.add(_request("a", 1), 0.0)
    _next(queue)
    queue.drop("a")
    assert _finish(queue, {1: ENCODED}) == []
    assert len(queue) == 0


def test_no_image_starts_without_a_permit_and_candidates_are_in_order_of_arrival() -> None:
    queue = BatchQueue(8)
    for number in range(3):
        queue.add(_request(f"r{number}", 10 * number + 1, 10 * number + 2), 0.0)
    candidate = queue.permit_candidates()[0]
    assert (candidate.pending.request.id, candidate.nbytes) == ("r0", 2 * PIXELS_NBYTES)
    assert queue.next_batch() is None
    queue.grant(candidate.pending)
    assert _ids(queue.next_batch()) == [1, 2]
    assert queue.next_batch() is None
    assert _grant_all(queue) == ["r1", "r2"]
    assert _ids(queue.next_batch()) == [11, 12, 21, 22]


def test_a_permit_ends_when_the_encoder_has_all_its_pixels() -> None:
    queue = BatchQueue(max_images=2)
    queue.add(_request("a", 1, 2, 3), 0.0)
    assert _ids(_next(queue)) == [1, 2]
    queue.permits.decoded([1, 2])
    assert queue.permits.take_ended() == []
    assert _ids(_next(queue)) == [3]
    _finish(queue, {1: ENCODED, 2: ENCODED})
    assert queue.permits.take_ended() == []
    queue.permits.decoded([3])
    assert queue.permits.take_ended() == ["a/0"]
    assert queue.permits.take_ended() == []


def test_a_dropped_request_keeps_its_permit_while_its_image_is_decoded() -> None:
    queue = BatchQueue(8)
    queue.add(_request("a", 1), 0.0)
    _next(queue)
    queue.drop("a")
    assert queue.permits.take_ended() == []
    queue.permits.decoded([1])
    assert queue.permits.take_ended() == ["a/0"]


def test_a_permit_granted_to_a_dropped_request_ends_at_once() -> None:
    queue = BatchQueue(8)
    for name in ("a", "b", "c"):
        queue.add(_request(name, 1), 0.0)
    (first,) = queue.permit_candidates()
    queue.drop("a")
    queue.grant(first.pending)
    assert queue.permits.take_ended() == ["a/0"], "it was dropped while it waited for its permit"
    assert _grant_all(queue) == ["b"], "its image is c's too"
    assert _ids(queue.next_batch()) == [1]


def test_a_promised_request_starts_behind_the_current_one() -> None:
    queue = BatchQueue(8)
    for name, number in (("a", 1), ("b", 2), ("c", 3)):
        queue.add(_request(name, number), 0.0)
    first, second, _ = queue.permit_candidates()
    queue.grant(first.pending)
    queue.promise(second.pending)
    assert [candidate.pending.request.id for candidate in queue.permit_candidates()] == ["c"], (
        "the others have or are promised a permit"
    )
    assert _ids(queue.next_batch()) == [1]
    assert _ids(queue.next_batch(promised_only=True)) == [2]
    assert queue.next_batch(promised_only=True) is None
    queue.permits.decoded([1])
    assert queue.permits.take_ended() == ["a/0"]


def test_a_promised_request_waits_for_all_images_of_the_current_one() -> None:
    queue = BatchQueue(max_images=2)
    queue.add(_request("a", 1, 2, 3), 0.0)
    queue.add(_request("b", 4), 0.0)
    first, second = queue.permit_candidates()
    queue.grant(first.pending)
    queue.promise(second.pending)
    assert _ids(queue.next_batch()) == [1, 2]
    assert queue.next_batch(promised_only=True) is None
    assert _ids(queue.next_batch()) == [3]
    assert _ids(queue.next_batch(promised_only=True)) == [4]


def test_a_batch_keeps_within_the_room_there_is() -> None:
    queue = BatchQueue(max_images=4)
    queue.add(_request("a", 1, 2, 3), 0.0)
    queue.add(_request("b", 4), 0.0)
    _grant_all(queue)
    assert _ids(queue.next_batch(room=2)) == [1, 2]
    assert queue.permits.take_ended() == []
    assert _ids(queue.next_batch(room=8)) == [3, 4]


def test_an_image_has_waiters_as_long_as_a_request_needs_it() -> None:
    queue = BatchQueue(8)
    queue.add(_request("a", 1), 0.0)
    queue.add(_request("b", 1), 0.0)
    batch = _next(queue)
    assert batch is not None
    queue.drop("a")
    assert queue.has_waiters(batch.images)
    queue.drop("b")
    assert not queue.has_waiters(batch.images)
    queue.cancel(batch.images)
    assert queue.permits.take_ended() == ["a/0"]
    queue.add(_request("c", 1), 0.0)
    assert _ids(_next(queue)) == [1], "a new request needs it"


def test_a_dropped_request_gives_its_promised_permit_back() -> None:
    queue = BatchQueue(8)
    for name, number in (("a", 1), ("b", 2)):
        queue.add(_request(name, number), 0.0)
    first, second = queue.permit_candidates()
    queue.grant(first.pending)
    queue.promise(second.pending)
    queue.drop("b")
    assert queue.permits.take_ended() == ["b/0"]
    queue.promise(second.pending)
    assert queue.permits.take_ended() == ["b/0"], "it was dropped before the promise arrived"


def test_requests_beyond_the_limit_are_refused() -> None:
    queue = BatchQueue(8, max_requests=2)
    for name in ("a", "b"):
        assert queue.add(_request(name, 1), 0.0) == []
    (refused,) = queue.add(_request("c", 2), 0.0)
    assert isinstance(refused, AbortRequest)
    assert (refused.id, refused.reason) == ("c", "queue_full")
    assert queue.add(_request("d", 3, number=1), 0.0) == [], "its sequence was accepted before"
    queue.drop("d")
    assert _ids(_next(queue)) == [1]


def test_all_choices_of_a_client_request_count_as_one() -> None:
    queue = BatchQueue(8, max_requests=2)
    for name in ("a", "b"):
        for choice in range(4):
            assert queue.add(_request(choice_id(name, choice), 1), 0.0) == []
    assert len(queue) == 2
    (refused,) = queue.add(_request(choice_id("c", 0), 1), 0.0)
    assert isinstance(refused, AbortRequest)
    assert refused.reason == "queue_full"
    for choice in range(4):
        queue.drop(choice_id("a", choice))
        assert len(queue) == (2 if choice < 3 else 1)
    assert queue.add(_request(choice_id("c", 0), 1), 0.0) == []
    _next(queue)
    assert len(_finish(queue, {1: ENCODED})) == 5
    assert len(queue) == 0


def test_a_repeated_attempt_is_ignored_and_a_later_one_replaces_it() -> None:
    queue = BatchQueue(8)
    first, second = _request("a", 1), _request("a", 2, attempt=1)
    queue.add(first, 0.0)
    assert queue.add(first, 0.0) == []
    queue.add(second, 0.0)
    assert queue.add(first, 0.0) == []
    assert _ids(_next(queue)) == [2]
    assert _finish(queue, {2: ENCODED}) == [_encoded("a", 2, attempt=1)]


def test_a_further_request_of_the_same_attempt_has_a_permit_of_its_own() -> None:
    queue = BatchQueue(8)
    queue.add(_request("a", 1), 0.0)
    _next(queue)
    _finish(queue, {1: ENCODED})
    queue.add(_request("a", 2, number=1), 0.0)
    (candidate,) = queue.permit_candidates()
    assert candidate.pending.permit_name == "a/0.1", "the first one may not be released yet"


def test_an_abort_names_the_attempt_it_ends() -> None:
    queue = BatchQueue(8)
    queue.add(_request("a", 1, attempt=3), 0.0)
    _next(queue)
    (abort,) = _finish(queue, {1: Outcome("media_lost")})
    assert isinstance(abort, AbortRequest)
    assert (abort.attempt, abort.reason, abort.media_index) == (3, "media_lost", 0)


def test_the_requests_of_an_http_worker_that_died_are_dropped() -> None:
    queue = BatchQueue(4)
    mine, others = _request("a", 1, 2), structs.replace(_request("b", 2, 3), reply_to=1)
    later = structs.replace(_request("c", 4), arrival_s=9.0)
    for request in (mine, others, later):
        queue.add(request, 0.0)
    queue.drop_orphans(WorkerDied(worker=3, died_s=5.0))
    assert _grant_all(queue) == ["b", "c"]
    assert _ids(_next(queue)) == [2, 3, 4]


def test_images_that_another_machine_takes_are_not_started_here() -> None:
    queue = BatchQueue(4)
    queue.add(_request("a", 1, 2), 0.0)
    queue.add(_request("b", 2, 3), 0.0)
    assert [waiting.item_id for waiting in queue.waiting_images(9)] == [1, 2, 3]
    assert [waiting.item_id for waiting in queue.waiting_images(2)] == [1, 2]
    first, second, _ = queue.waiting_images(9)
    queue.take(first)
    queue.take(second)
    assert queue.num_in_flight == 2
    assert _ids(_next(queue)) == [3]
    assert queue.finish({2: ENCODED}, 1.0) == [_encoded("a", 2), _encoded("b", 2)]
    queue.give_back(first)
    assert [waiting.item_id for waiting in queue.waiting_images(9)] == [1]
    assert _ids(_next(queue)) == [1]


def test_an_image_that_nobody_needs_any_more_is_forgotten_when_it_is_given_back() -> None:
    queue = BatchQueue(4)
    queue.add(_request("a", 1), 0.0)
    (waiting,) = queue.waiting_images(9)
    queue.take(waiting)
    queue.drop("a")
    assert queue.item_ids == {1}
    queue.give_back(waiting)
    assert not queue.item_ids
