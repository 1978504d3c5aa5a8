"""How far a sequence is, as the scheduler tells an HTTP worker that asks."""

from __future__ import annotations

from mmserve.messages.reply import SequenceStages
from mmserve.messages.request import AskStages
from mmserve.router.scheduler.scheduler import Scheduler
from tests.unit.router.builders import Engine, request
from tests.unit.router.scheduler.test_images_to_encode import PROMPT, SPANS


def _stages(scheduler: Scheduler, *ids: str) -> dict[str, str]:
    """Takes the answer only."""
    assert not scheduler.take_replies()
    scheduler.receive(AskStages(reply_to=1, ids=ids))
    ((worker, answer),) = scheduler.take_replies()
    assert worker == 1
    assert isinstance(answer, SequenceStages)
    return dict(answer.stages)


def test_a_text_is_queued_then_prefilled_then_decoded_then_unknown() -> None:
    engine = Engine(max_num_batched_tokens=24, max_num_seqs=1)
    for name in ("a", "b"):
        engine.scheduler.receive(request(name, list(range(100, 140)), max_tokens=3))
    assert _stages(engine.scheduler, "a", "b", "other") == {"a": "queued", "b": "queued"}
    engine.run_step()
    assert _stages(engine.scheduler, "a", "b") == {"a": "prefill", "b": "queued"}
    engine.run_step()
    assert _stages(engine.scheduler, "a") == {"a": "decoding"}
    engine.run()
    assert _stages(engine.scheduler, "a", "b") == {}


def test_a_sequence_is_encoding_until_its_image_is_there() -> None:
    engine = Engine(max_num_batched_tokens=24)
    engine.scheduler.receive(request("a", PROMPT, spans=SPANS))
    assert _stages(engine.scheduler, "a") == {"a": "encoding"}, "text before the image may be computed meanwhile"
    engine.run()
    assert _stages(engine.scheduler, "a") == {"a": "encoding"}
    engine.encode_next()
    engine.run_step()
    assert _stages(engine.scheduler, "a") == {"a": "prefill"}


def test_a_sequence_that_comes_again_after_a_restart_is_not_decoding_before_its_prompt_is_computed() -> None:
    engine = Engine(max_num_batched_tokens=24)
    engine.scheduler.receive(request("a", list(range(100, 140)), output=[7, 8], attempt=1))
    engine.run_step()
    assert _stages(engine.scheduler, "a") == {"a": "prefill"}
    engine.run_step()
    assert _stages(engine.scheduler, "a") == {"a": "decoding"}
