"""Decoding waits for prompts whose pictures are being encoded on the same cores, for a while, and for nothing else."""

from __future__ import annotations

import pytest

from mmserve.config.resolved.deployment import FIRST_VIRTUAL_TOKEN
from mmserve.messages.request import EngineInbound
from tests.unit.router.builders import Engine, abort, request, span

TEXT = list(range(100, 110))
DECODE_S, STEP_S = 0.125, 2.0
"""Of a step with one row; the limit of a step with prompts. One row reports a token's time, whatever the clock says."""


def _about_image(id: str, item_id: int, *, encoded: bool, num_tokens: int = 50) -> EngineInbound:
    first = FIRST_VIRTUAL_TOKEN + 100 * item_id
    return request(
        id, [*range(first, first + 8), *TEXT], spans=(span(0, 8, item_id, encoded=encoded),), max_tokens=num_tokens
    )


def _engine(*messages: EngineInbound, shares_cores: bool = True, depth: int = 1) -> Engine:
    """The sequences of ``messages`` decode."""
    engine = Engine(shares_cores=shares_cores, token_s=DECODE_S, max_step_s=STEP_S, depth=depth)
    for message in messages:
        engine.scheduler.receive(message)
    for _ in range(30):  # until the times of steps are known
        engine.run_step()
    return engine


def _ask_for_an_image(engine: Engine) -> None:
    engine.scheduler.receive(_about_image("next", 9, encoded=False))
    engine.encoders.receive(engine.scheduler.take_encoder_messages())
    assert engine.encoders.requests


def test_an_answer_to_a_picture_waits_twice_as_long_as_a_step_takes() -> None:
    engine = _engine(_about_image("a", 1, encoded=True))
    assert engine.scheduler.pause_s() == 0, "no image is being encoded"
    _ask_for_an_image(engine)
    assert engine.scheduler.pause_s() == pytest.approx(2 * DECODE_S)
    engine.clock_s += DECODE_S
    assert engine.scheduler.pause_s() == pytest.approx(DECODE_S)
    engine.clock_s += DECODE_S
    assert engine.scheduler.pause_s() == 0
    engine.run_step()
    assert engine.scheduler.pause_s() == pytest.approx(2 * DECODE_S), "and so does the next token"


def test_it_goes_on_with_the_prompt_once_the_image_is_encoded() -> None:
    engine = _engine(_about_image("a", 1, encoded=True))
    _ask_for_an_image(engine)
    assert engine.scheduler.pause_s() > 0
    engine.encode_next()
    assert engine.scheduler.pause_s() == 0
    plan = engine.run_step()
    assert plan is not None
    first, prompt = plan.steps
    assert (first.num_tokens, prompt.num_tokens) == (1, 16), "a part of the prompt beside the answer's token"
    assert engine.scheduler.pause_s() == 0, "the prompt goes on"


def test_it_waits_no_longer_for_a_request_that_ends() -> None:
    engine = _engine(_about_image("a", 1, encoded=True))
    _ask_for_an_image(engine)
    assert engine.scheduler.pause_s() > 0
    engine.scheduler.receive(abort("next"))
    assert engine.scheduler.pause_s() == 0


def test_text_does_not_wait() -> None:
    engine = _engine(request("text", TEXT, max_tokens=50), _about_image("a", 1, encoded=True))
    _ask_for_an_image(engine)
    assert engine.scheduler.pause_s() == 0


def test_nothing_waits_while_nothing_decodes() -> None:
    engine = _engine()
    _ask_for_an_image(engine)
    assert engine.scheduler.pause_s() == 0


def test_nothing_waits_while_a_step_is_computed() -> None:
    engine = _engine(_about_image("a", 1, encoded=True))
    _ask_for_an_image(engine)
    engine.plan()
    assert engine.in_flight
    assert engine.scheduler.pause_s() == 0


def test_nothing_waits_where_images_are_encoded_on_other_cores() -> None:
    engine = _engine(_about_image("a", 1, encoded=True), shares_cores=False)
    _ask_for_an_image(engine)
    assert engine.scheduler.pause_s() == 0
