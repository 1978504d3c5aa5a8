"""What is encoded next and which requests that completes."""

from __future__ import annotations

from mmserve.messages.media import Handle, MediaSpan
from mmserve.messages.request import AbortRequest, GenerateRequest, choice_id
from mmserve.messages.sampling import SamplingParams
from mmserve.visualserver.batch_queue import ENCODED, Batch, BatchQueue, Outcome

PIXELS_NBYTES = 1000


def _request(name: str, *item_ids: int, ready: tuple[int, ...] = (), attempt: int = 0) -> GenerateRequest:
    spans = tuple(
        MediaSpan(
            start=10 * index,
            num_tokens=4,
            item_id=item_id,
            data=None if item_id in ready else Handle(item_id, 0, 1),
            embed=Handle(item_id + 1, 64, 1),
            media_index=index,
            decoded_nbytes=PIXELS_NBYTES,
        )
        for index, item_id in enumerate(item_ids)
    )
    sampling = SamplingParams(max_tokens=1)
    return GenerateRequest(
        id=name, reply_to=3, prompt_ids=b"", spans=spans, sampling=sampling, arrival_s=0.0, attempt=attempt
    )


def _ids(batch: Batch | None) -> list[int]:
    return [] if batch is None else [image.item_id for image in batch.images]


def _begin(batcher: BatchQueue) -> list[str]:
    """Every request's turn comes; whose it was."""
    begun = []
    while claims := batcher.claims():
        for claim in claims:
            batcher.begin(claim.held)
            begun.append(claim.held.request.id)
    return begun


def _next(batcher: BatchQueue) -> Batch | None:
    """The next batch, everybody having a turn."""
    _begin(batcher)
    return batcher.next_batch()


def test_images_of_many_requests_make_one_batch_first_come_first_served() -> None:
    batcher = BatchQueue(max_images=4)
    for name, items in (("a", (1, 2)), ("b", (3,)), ("c", (4, 5))):
        assert batcher.add(_request(name, *items), 0.0) == []
    first = _next(batcher)
    assert _ids(first) == [1, 2, 3, 4]
    assert first is not None
    assert [held.request.id for held in first.begun] == ["a", "b", "c"]
    second = _next(batcher)
    assert _ids(second) == [5]
    assert second is not None
    assert second.begun == ()
    assert _next(batcher) is None


def test_the_same_image_is_encoded_once_for_all_who_wait() -> None:
    batcher = BatchQueue(8)
    requests = [_request(f"r{n}", 7, 7) for n in range(32)]
    for request in requests[:31]:
        batcher.add(request, 0.0)
    assert _ids(_next(batcher)) == [7]
    batcher.add(requests[31], 0.0)
    assert _next(batcher) is None
    assert batcher.finish({7: ENCODED}) == requests
    assert len(batcher) == 0


def test_a_request_is_complete_with_its_last_image() -> None:
    batcher = BatchQueue(1)
    request = _request("a", 1, 2)
    batcher.add(request, 0.0)
    _next(batcher)
    assert batcher.finish({1: ENCODED}) == []
    _next(batcher)
    assert batcher.finish({2: ENCODED}) == [request]


def test_a_request_with_nothing_to_encode_goes_on_at_once() -> None:
    batcher = BatchQueue(8)
    request = _request("a", 1, ready=(1,))
    assert batcher.add(request, 0.0) == [request]
    assert len(batcher) == 0


def test_a_failing_image_fails_only_who_needs_it() -> None:
    batcher = BatchQueue(8)
    good, bad, both = _request("good", 1), _request("bad", 2), _request("both", 1, 2, 3)
    for request in (good, bad, both):
        batcher.add(request, 0.0)
    assert [_ids(_next(batcher)) for _ in range(2)] == [[1, 2], [3]]
    outbound = batcher.finish({1: ENCODED, 2: Outcome("media_error", "it is broken"), 3: ENCODED})
    assert outbound[0] == good
    assert outbound[1:] == [
        AbortRequest(id="bad", reply_to=3, reason="media_error", message="it is broken", media_index=0),
        AbortRequest(id="both", reply_to=3, reason="media_error", message="it is broken", media_index=1),
    ]
    assert len(batcher) == 0
    assert _next(batcher) is None


def test_images_that_only_a_failed_request_needed_are_not_encoded() -> None:
    batcher = BatchQueue(1)
    batcher.add(_request("a", 1, 2), 0.0)
    _next(batcher)
    batcher.finish({1: Outcome("media_error", "")})
    assert _next(batcher) is None


def test_a_dropped_request_takes_its_images_with_it_unless_others_wait() -> None:
    batcher = BatchQueue(8)
    other = _request("b", 2)
    batcher.add(_request("a", 1, 2), 0.0)
    batcher.add(other, 0.0)
    batcher.drop("a")
    batcher.drop("a")
    assert _ids(_next(batcher)) == [2]
    assert batcher.finish({2: ENCODED}) == [other]


def test_dropping_while_in_flight_answers_nobody() -> None:
    batcher = BatchQueue(8)
    batcher.add(_request("a", 1), 0.0)
    _next(batcher)
    batcher.drop("a")
    assert batcher.finish({1: ENCODED}) == []
    assert len(batcher) == 0


def test_nothing_begins_before_its_turn_and_turns_are_asked_for_in_order() -> None:
    batcher = BatchQueue(8)
    for number in range(3):
        batcher.add(_request(f"r{number}", 10 * number + 1, 10 * number + 2), 0.0)
    claim = batcher.claims()[0]
    assert (claim.held.request.id, claim.nbytes) == ("r0", 2 * PIXELS_NBYTES)
    assert batcher.next_batch() is None
    batcher.begin(claim.held)
    assert _ids(batcher.next_batch()) == [1, 2]
    assert batcher.next_batch() is None
    assert _begin(batcher) == ["r1", "r2"]
    assert _ids(batcher.next_batch()) == [11, 12, 21, 22]


def test_a_turn_lasts_until_the_encoder_has_all_its_pixels() -> None:
    batcher = BatchQueue(max_images=2)
    batcher.add(_request("a", 1, 2, 3), 0.0)
    assert _ids(_next(batcher)) == [1, 2]
    batcher.turns.taken([1, 2])
    assert batcher.turns.ended() == []
    assert _ids(_next(batcher)) == [3]
    batcher.finish({1: ENCODED, 2: ENCODED})
    assert batcher.turns.ended() == []
    batcher.turns.taken([3])
    assert batcher.turns.ended() == ["a/0"]
    assert batcher.turns.ended() == []


def test_a_dropped_request_keeps_its_turn_while_a_thread_decodes_for_it() -> None:
    batcher = BatchQueue(8)
    batcher.add(_request("a", 1), 0.0)
    _next(batcher)
    batcher.drop("a")
    assert batcher.turns.ended() == []
    batcher.turns.taken([1])
    assert batcher.turns.ended() == ["a/0"]


def test_a_turn_that_nobody_needs_any_more_is_over_at_once() -> None:
    batcher = BatchQueue(8)
    for name in ("a", "b", "c"):
        batcher.add(_request(name, 1), 0.0)
    (first,) = batcher.claims()
    batcher.drop("a")
    batcher.begin(first.held)
    assert batcher.turns.ended() == ["a/0"], "it was dropped while it waited"
    assert _begin(batcher) == ["b"], "its image is c's too"
    assert _ids(batcher.next_batch()) == [1]


def test_who_follows_begins_when_the_turn_that_is_on_is_over() -> None:
    batcher = BatchQueue(8)
    for name, number in (("a", 1), ("b", 2), ("c", 3)):
        batcher.add(_request(name, number), 0.0)
    first, second, _ = batcher.claims()
    batcher.begin(first.held)
    batcher.follow(second.held)
    assert [claim.held.request.id for claim in batcher.claims()] == ["c"], "the others need not ask any more"
    assert _ids(batcher.next_batch()) == [1]
    assert _ids(batcher.next_batch(ahead=True)) == [2]
    assert batcher.next_batch(ahead=True) is None
    batcher.turns.taken([1])
    assert batcher.turns.ended() == ["a/0"]


def test_who_follows_goes_behind_all_images_of_the_turn_that_is_on() -> None:
    batcher = BatchQueue(max_images=2)
    batcher.add(_request("a", 1, 2, 3), 0.0)
    batcher.add(_request("b", 4), 0.0)
    first, second = batcher.claims()
    batcher.begin(first.held)
    batcher.follow(second.held)
    assert _ids(batcher.next_batch()) == [1, 2]
    assert batcher.next_batch(ahead=True) is None
    assert _ids(batcher.next_batch()) == [3]
    assert _ids(batcher.next_batch(ahead=True)) == [4]


def test_an_image_is_wanted_as_long_as_a_request_waits_for_it() -> None:
    batcher = BatchQueue(8)
    batcher.add(_request("a", 1), 0.0)
    batcher.add(_request("b", 1), 0.0)
    batch = _next(batcher)
    assert batch is not None
    batcher.drop("a")
    assert batcher.wanted(batch.images)
    batcher.drop("b")
    assert not batcher.wanted(batch.images)
    batcher.withdraw(batch.images)
    assert batcher.turns.ended() == ["a/0"]
    batcher.add(_request("c", 1), 0.0)
    assert _ids(_next(batcher)) == [1], "somebody wants it again"


def test_who_was_dropped_before_it_followed_gives_its_turn_back() -> None:
    batcher = BatchQueue(8)
    for name, number in (("a", 1), ("b", 2)):
        batcher.add(_request(name, number), 0.0)
    first, second = batcher.claims()
    batcher.begin(first.held)
    batcher.follow(second.held)
    batcher.drop("b")
    assert batcher.turns.ended() == ["b/0"]
    batcher.follow(second.held)
    assert batcher.turns.ended() == ["b/0"], "it was dropped before the word came"


def test_more_than_may_wait_are_refused() -> None:
    batcher = BatchQueue(8, max_held=2)
    for name in ("a", "b"):
        assert batcher.add(_request(name, 1), 0.0) == []
    (refused,) = batcher.add(_request("c", 2), 0.0)
    assert isinstance(refused, AbortRequest)
    assert (refused.id, refused.reason) == ("c", "queue_full")
    ready = _request("d", 3, ready=(3,))
    assert batcher.add(ready, 0.0) == [ready], "it waits for nothing"
    assert _ids(_next(batcher)) == [1]


def test_n_choices_of_a_request_wait_as_one() -> None:
    batcher = BatchQueue(8, max_held=2)
    for name in ("a", "b"):
        for choice in range(4):
            assert batcher.add(_request(choice_id(name, choice), 1), 0.0) == []
    assert len(batcher) == 2
    (refused,) = batcher.add(_request(choice_id("c", 0), 1), 0.0)
    assert isinstance(refused, AbortRequest)
    assert refused.reason == "queue_full"
    for choice in range(4):
        batcher.drop(choice_id("a", choice))
        assert len(batcher) == (2 if choice < 3 else 1)
    assert batcher.add(_request(choice_id("c", 0), 1), 0.0) == []
    _next(batcher)
    assert len(batcher.finish({1: ENCODED})) == 5
    assert len(batcher) == 0


def test_the_same_attempt_counts_once_and_a_later_one_replaces_it() -> None:
    batcher = BatchQueue(8)
    first, second = _request("a", 1), _request("a", 2, attempt=1)
    batcher.add(first, 0.0)
    assert batcher.add(first, 0.0) == []
    batcher.add(second, 0.0)
    assert batcher.add(first, 0.0) == []
    assert _ids(_next(batcher)) == [2]
    assert batcher.finish({2: ENCODED}) == [second]


def test_an_abort_names_the_attempt_it_ends() -> None:
    batcher = BatchQueue(8)
    batcher.add(_request("a", 1, attempt=3), 0.0)
    _next(batcher)
    (abort,) = batcher.finish({1: Outcome("media_lost")})
    assert isinstance(abort, AbortRequest)
    assert (abort.attempt, abort.reason, abort.media_index) == (3, "media_lost", 0)
