"""Chunks for a model that attends to whole images end beside images, and every request still finishes."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mmserve.config.resolved.deployment import FIRST_VIRTUAL_TOKEN
from mmserve.messages.media import MediaSpan, end_beside_images
from mmserve.router.scheduler.sequence import Sequence as Running
from mmserve.router.scheduler.step_budget import StepBudget
from tests.unit.router.builders import Engine, request, span

IMAGE_TOKENS = (3, 12, 20, 30)
"""By item."""

Part = tuple[str, int]
parts = st.one_of(
    st.tuples(st.just("text"), st.integers(1, 30)), st.tuples(st.just("image"), st.integers(0, len(IMAGE_TOKENS) - 1))
)
prompts = st.lists(parts, min_size=1, max_size=6)
engines = st.builds(
    dict,
    num_blocks=st.sampled_from([16, 40]),
    max_num_seqs=st.integers(1, 6),
    max_num_batched_tokens=st.sampled_from([36, 64]),
    max_step_s=st.sampled_from([0.0, 0.02]),
    token_s=st.sampled_from([0.0, 0.001]),
    block_tokens=st.sampled_from([16, 8]),
    depth=st.integers(1, 2),
    max_forced_tokens=st.sampled_from([0, 20]),
)


def prompt_of(parts: Sequence[Part]) -> tuple[list[int], tuple[MediaSpan, ...]]:
    """Token ids and spans; a text always has the same ids, so prompts share prefixes that end inside images."""
    tokens, spans = [], []
    for kind, number in parts:
        if kind == "text":
            tokens += range(100, 100 + number)
            continue
        first = FIRST_VIRTUAL_TOKEN + 1000 * number
        spans.append(span(len(tokens), IMAGE_TOKENS[number], number))
        tokens += range(first, first + IMAGE_TOKENS[number])
    return tokens, tuple(spans)


@given(prompts, st.integers(0, 100), st.integers(1, 50))
def test_a_chunk_ends_beside_images(parts: list[Part], start: int, num_tokens: int) -> None:
    tokens, spans = prompt_of(parts)
    start = min(start, len(tokens) - 1)
    planned = min(start + num_tokens, len(tokens))
    end = end_beside_images(spans, start, planned)
    assert start < end <= len(tokens)
    assert not any(each.start < end < each.start + each.num_tokens for each in spans)
    assert end <= planned or any(each.start <= start and end == each.start + each.num_tokens for each in spans)
    assert end >= planned or any(each.start == end for each in spans)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(engines, st.lists(st.tuples(prompts, st.integers(1, 20)), min_size=1, max_size=12))
def test_no_step_ends_inside_an_image_and_all_requests_finish(
    options: dict[str, int], jobs: list[tuple[list[Part], int]]
) -> None:
    engine = Engine(**options, whole_images=True)
    for number, (parts, max_tokens) in enumerate(jobs):
        tokens, spans = prompt_of(parts)
        engine.scheduler.receive(request(str(number), tokens, spans=spans, max_tokens=max_tokens))
    spans_of: dict[int, tuple[MediaSpan, ...]] = {}
    for _ in range(2000):
        if (plan := engine.run_step()) is None:
            break
        spans_of |= {new.slot: new.spans for new in plan.new}
        for step in plan.steps:
            end = step.start + step.num_tokens
            assert end_beside_images(spans_of[step.slot], step.start, end) == end
    assert engine.scheduler.idle
    for number, (parts, _) in enumerate(jobs):
        tokens, _ = prompt_of(parts)
        assert engine.finish(str(number)) == ("length" if len(tokens) < engine.context_tokens else "error")


def test_a_chunk_is_cut_before_an_image_and_takes_one_that_it_begins_with() -> None:
    tokens, spans = prompt_of([("text", 10), ("image", 3), ("text", 5)])
    sequence = Running(request("images", tokens, spans=spans), 0, 0.0, 1000)
    taken = []
    for _ in range(4):
        budget = StepBudget(20, beside_text=False, image_room=32)
        taken.append(budget.take(sequence))
        sequence.num_computed_tokens += taken[-1]
    assert taken == [10, 30, 5, 0]
    sequence.num_computed_tokens = 25  # of which the prefix cache had some of the image
    assert StepBudget(8, beside_text=True, image_room=32).take(sequence) == 15


def test_an_image_without_room_is_computed_in_the_next_step_and_nothing_overtakes_it() -> None:
    tokens, spans = prompt_of([("image", 3)])
    image = Running(request("image", tokens, spans=spans), 0, 0.0, 1000)
    text = Running(request("text", [1] * 20), 1, 0.0, 1000)
    budget = StepBudget(40, beside_text=True, image_room=40)
    assert [budget.take(text), budget.room(image), budget.room(text)] == [20, 0, 0]
    assert StepBudget(40, beside_text=True, image_room=40).take(image) == 30


def test_known_tokens_of_decoding_sequences_leave_room_for_an_image() -> None:
    budget = StepBudget(40, beside_text=False, image_room=60, largest_image=30)
    assert [budget.take_known(20), budget.take_known(20), budget.take_known(20)] == [20, 10, 0]
    assert StepBudget(40, beside_text=False).take_known(50) == 40


def test_an_image_that_fits_no_step_is_refused() -> None:
    engine = Engine(max_num_batched_tokens=32, max_num_seqs=4, whole_images=True)
    for name, item in (("large", 3), ("small", 2)):
        tokens, spans = prompt_of([("image", item)])
        engine.scheduler.receive(request(name, tokens, spans=spans))
    engine.run()
    assert [engine.finish("large"), engine.finish("small")] == ["error", "length"]
