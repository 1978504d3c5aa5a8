"""Random and damaged bytes at every internal decoder: a typed error, and no more memory than the bytes deserve."""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmserve.cache_server.rpc.framing import MAX_FRAME_NBYTES, FrameBuffer, frame
from mmserve.ipc.links.codec import Codec
from mmserve.messages.cache import (
    AllocItem,
    AllocReply,
    AllocRequest,
    CacheRequest,
    EmbedState,
    ItemState,
    MediaRecord,
    PermitRequest,
    PermitsReply,
    SetEmbedRequest,
)
from mmserve.messages.media import Handle, MediaSpan
from mmserve.messages.nodes import Join, Meet, ToHead, ToNode
from mmserve.messages.reply import FollowResponse, HttpInbound, ServerPhase, TokenReply
from mmserve.messages.request import EncodeRequest, EngineInbound, GenerateRequest, ImagesEncoded, VisualInbound
from mmserve.messages.sampling import SamplingParams
from mmserve.messages.status import HealthInbound, ProcessRow, ProcessTable
from mmserve.messages.step import (
    NewSequence,
    PlanWithRows,
    RankInbound,
    RankOutbound,
    RowPiece,
    SequenceStep,
    StepPlan,
    StepResult,
)

HANDLE = Handle(1 << 61, 64, 3)
SPAN = MediaSpan(start=1, num_tokens=4, item_id=9, data=HANDLE, embed=HANDLE, media_index=0)
SAMPLING = SamplingParams(max_tokens=5, logit_bias={3: -1.5}, stop_token_ids=(2,), logprobs=2)
LINKS: dict[str, tuple[object, object]] = {
    "engine": (
        EngineInbound,
        GenerateRequest(id="a", reply_to=0, prompt_ids=bytes(80), spans=(SPAN,), sampling=SAMPLING, arrival_s=1),
    ),
    "encoder": (VisualInbound, EncodeRequest(id="a", reply_to=0, spans=(SPAN,), arrival_s=1)),
    "encoded": (EngineInbound, ImagesEncoded(id="a", attempt=1, item_ids=(9,))),
    "http": (HttpInbound, TokenReply(id="a", token_ids=(1, 2), finish="stop")),
    "phase": (HttpInbound, ServerPhase(phase="ready", ready=True, engine_epoch=3)),
    "follow": (HttpInbound, FollowResponse(id="resp_1", seen=3, worker=1)),
    "plan": (
        RankInbound,
        StepPlan(
            step_id=1,
            new=(NewSequence(slot=0, token_ids=bytes(24), num_prompt_tokens=3, spans=(SPAN,), sampling=SAMPLING),),
            steps=(SequenceStep(slot=0, start=0, num_tokens=3, new_blocks=(4, 5), sample=True),),
        ),
    ),
    "plan with rows": (
        RankInbound,
        PlanWithRows(plan=StepPlan(step_id=1), pieces=(RowPiece(HANDLE, 16, bytearray(32)),)),
    ),
    "join": (ToHead, Join(node_rank=1, facts={"--dtype": "float32"})),
    "meet": (ToNode, Meet(host="10.0.0.1", port=5)),
    "result": (RankOutbound, StepResult(step_id=1, tokens=((0, (5,)),))),
    "health": (HealthInbound, ServerPhase(phase="ready", ready=True)),
    "processes": (
        HealthInbound,
        ProcessTable(supervisor_pid=1, started_s=0.5, processes=(ProcessRow("a-0", "a", "g", 2, 0.5, None, 0),)),
    ),
    "cache": (CacheRequest, AllocRequest(request_id="a", items=(AllocItem(b"key", 4, 100, 1 << 40),), wait_s=0.5)),
    "cache encoded": (CacheRequest, SetEmbedRequest(item_ids=(1, 1 << 61), ok=(True, False))),
    "alloc reply": (AllocReply, AllocReply(records=(MediaRecord(1, 1 << 33, "write", HANDLE, HANDLE),))),
    "item states": (tuple[ItemState, ...], ("hit", "wait")),
    "embed states": (tuple[EmbedState, ...], ("ready", "gone")),
    "permits": (PermitsReply, PermitsReply(granted=("a",), promised="b")),
    "permit request": (PermitRequest, PermitRequest("a", 100, 1.5)),
}
WELCOME_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What receivers skip a message for (ipc/links/channel.py)."""
LARGEST = 1 << 20


@contextlib.contextmanager
def _little_memory(nbytes: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < LARGEST + 200 * nbytes
    finally:
        tracemalloc.stop()


def _try(link: str, data: bytes) -> None:
    codec: Codec[object] = Codec(LINKS[link][0])
    with _little_memory(len(data)), contextlib.suppress(*WELCOME_ERRORS):
        codec.encode(codec.decode(data))


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(LINKS)), st.binary(max_size=200))
def test_random_bytes(link: str, data: bytes) -> None:
    _try(link, data)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(sorted(LINKS)), st.data())
def test_damaged_messages(link: str, data: st.DataObject) -> None:
    """Bytes changed, cut out and put in, and lengths that promise more than follows."""
    message = bytearray(msgspec.msgpack.encode(LINKS[link][1]))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(message)))
        match data.draw(st.sampled_from(("change", "cut", "insert", "promise"))):
            case "change":
                message[at : at + 1] = data.draw(st.binary(min_size=1, max_size=1))
            case "cut":
                del message[at : at + data.draw(st.integers(1, 20))]
            case "insert":
                message[at:at] = data.draw(st.binary(max_size=20))
            case "promise":
                kind = data.draw(st.sampled_from((b"\xdd", b"\xdf", b"\xc6", b"\xdb")))
                message[at : at + 1] = kind + data.draw(st.sampled_from((b"\xff\xff\xff\xff", b"\x00\xff\xff\xff")))
    _try(link, bytes(message))


@pytest.mark.parametrize("link", sorted(LINKS))
@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1t"])
def test_deep_nesting(link: str, opening: bytes) -> None:
    _try(link, opening * 100_000)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=6), st.data())
def test_frames_are_cut_alike_however_they_arrive(messages: list[bytes], data: st.DataObject) -> None:
    wire, buffer, found = b"".join(map(frame, messages)), FrameBuffer(), []
    while wire:
        size = data.draw(st.integers(1, len(wire)))
        buffer.feed(wire[:size])
        wire = wire[size:]
        while (message := buffer.next()) is not None:
            found.append(message)
    assert found == messages


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes_are_frames_or_the_end_of_the_connection(data: bytes) -> None:
    buffer = FrameBuffer()
    with _little_memory(len(data)):
        buffer.feed(data)
        try:
            while (message := buffer.next()) is not None:
                assert len(message) <= MAX_FRAME_NBYTES
        except ConnectionError:
            return
