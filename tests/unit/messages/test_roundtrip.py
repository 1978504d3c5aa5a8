"""Messages are unchanged by encoding and decoding, and bytes of other types are refused."""

from __future__ import annotations

from array import array

import msgspec
import pytest

from mmserve.ipc.links.codec import Codec
from mmserve.messages.cache import AllocItem, AllocRequest, CacheRequest, Register, SetEmbedRequest
from mmserve.messages.logprobs import pack, unpack
from mmserve.messages.media import ExpandedImage, Handle, MediaSpan, Processing
from mmserve.messages.reply import (
    FollowResponse,
    HttpInbound,
    ImageRows,
    ResponseChanged,
    ServerPhase,
    StopResponse,
    TokenReply,
)
from mmserve.messages.request import (
    AbortRequest,
    CountImageRows,
    EncodeRequest,
    EngineInbound,
    GenerateRequest,
    ImagesEncoded,
    VisualInbound,
    WorkerDied,
)
from mmserve.messages.sampling import SamplingParams
from mmserve.messages.step import NewSequence, SequenceStep, SlotFailure, StepPlan, StepResult

SPAN = MediaSpan(
    start=1,
    num_tokens=4,
    item_id=9,
    data=Handle(1, 64, 3),
    embed=Handle(2, 128, 32),
    media_index=0,
    processing=Processing('{"max_pixels":5}', 2),
)
SAMPLING = SamplingParams(max_tokens=5, logit_bias={3: -1.5}, stop_token_ids=(2,), logprobs=2)
LOGPROBS = pack([(5, -0.5), (4, -0.25)])
IDS = array("q", [1, 1 << 40, 5]).tobytes()


@pytest.mark.parametrize(
    ("link", "message"),
    [
        (
            EngineInbound,
            GenerateRequest(id="a", reply_to=0, prompt_ids=IDS, spans=(SPAN,), sampling=SAMPLING, arrival_s=1),
        ),
        (EngineInbound, AbortRequest(id="a", reply_to=1, reason="media_error", media_index=2)),
        (EngineInbound, ImagesEncoded(id="a", attempt=1, item_ids=(9, 1 << 61), stage_times={"turn": 0.5})),
        (VisualInbound, EncodeRequest(id="a", reply_to=1, spans=(SPAN,), arrival_s=1, number=2)),
        (VisualInbound, WorkerDied(worker=1, died_s=2.5)),
        (CacheRequest, Register(owner="http-0/1")),
        (CacheRequest, AllocRequest(request_id="a", items=(AllocItem(b"key", 4, 100, 1 << 40),), wait_s=0.5)),
        (CacheRequest, SetEmbedRequest(item_ids=(1, 1 << 61), ok=(True, False))),
        (HttpInbound, TokenReply(id="a", token_ids=(1, 2), finish="stop")),
        (HttpInbound, TokenReply(id="a", token_ids=(5,), logprobs=(LOGPROBS,))),
        (HttpInbound, ServerPhase(phase="ready", ready=True, engine_epoch=3)),
        (HttpInbound, FollowResponse(id="resp_1", seen=3, worker=1)),
        (HttpInbound, ResponseChanged(id="resp_1")),
        (HttpInbound, StopResponse(id="resp_1")),
        (
            HttpInbound,
            ImageRows(sizes=((640, 480), (1, 9000)), expansions=(ExpandedImage("<image>", ((1, 3, 4),)), None)),
        ),
        (VisualInbound, CountImageRows(reply_to=1, sizes=((640, 480),))),
        (VisualInbound, AbortRequest(id="a", reply_to=1)),
        (
            StepResult,
            StepResult(step_id=1, tokens=((0, (5,)),), failures=(SlotFailure(slot=1, media_lost=True, message="x"),)),
        ),
        (
            StepResult,
            StepResult(step_id=1, tokens=((0, (5, 7)), (1, (6,))), logprobs=((0, (LOGPROBS, b"")),), forward_s=0.5),
        ),
        (
            StepPlan,
            StepPlan(
                step_id=1,
                free=(2,),
                new=(NewSequence(slot=0, token_ids=IDS, num_prompt_tokens=3, spans=(SPAN,), sampling=SAMPLING),),
                steps=(SequenceStep(slot=0, start=0, num_tokens=3, new_blocks=(4, 5), sample=True),),
            ),
        ),
    ],
)
def test_a_message_is_unchanged_by_its_codec(link: object, message: object) -> None:
    codec: Codec[object] = Codec(link)
    assert codec.decode(codec.encode(message)) == message


def test_logprobs_take_eight_bytes_a_pair_and_are_unchanged_by_packing() -> None:
    assert unpack(LOGPROBS) == [(5, -0.5), (4, -0.25)]
    assert len(LOGPROBS) == 16


@pytest.mark.parametrize("data", [b"", b"\xc1", b"hello", msgspec.msgpack.encode({"t": "generate"}), b"\x80"])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        Codec(EngineInbound).decode(data)
