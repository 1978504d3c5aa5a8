"""The stream of deltas between the task that makes an answer and the connection that reads it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmserve.httpserver.api.openai.chat.answer import ChatAnswer
from mmserve.httpserver.api.response import TaskResponse
from mmserve.httpserver.call import GenerateCall
from mmserve.httpserver.output.answer_delta import AnswerDelta
from mmserve.httpserver.output.deltas import DeltaStream, Usage
from mmserve.httpserver.output.logprobs import TokenLogprobs
from mmserve.httpserver.output.parsing.pieces import Text
from mmserve.httpserver.output.render_turns import RenderTurns
from mmserve.httpserver.output.vocabulary import Vocabulary
from mmserve.messages.logprobs import pack
from mmserve.messages.sampling import SamplingParams
from mmserve.runtime.errors import MmserveError, Unavailable
from tests.fakes.http.connection import Connection
from tests.fakes.http.http_services import byte_tokenizer
from tests.fakes.ranks.calls import generate_call

TOP = 20
BACKLOG = 1000


def test_the_stream_ends_with_its_last_choice_and_counts_usage() -> None:
    async def test() -> None:
        stream = DeltaStream(2, RenderTurns())
        stream.open(prompt_tokens=10, image_tokens=4)
        stream.push(AnswerDelta(0, (Text("a"),), 1, None, 3))
        assert (await anext(stream)).text == "a"
        stream.push(AnswerDelta(1, (Text("b"),), 2, "stop", 9))  # it reused the prefix that the first one had computed
        assert not stream.complete
        stream.push(AnswerDelta(0, (Text("c"),), 1, "length"))
        assert stream.complete
        stream.fail(MmserveError("ignored: the answer is complete"))
        assert [delta.text async for delta in stream] == ["b", "c"]
        assert stream.usage == Usage(10, 4, 3, 4)

    asyncio.run(test())


def test_the_length_of_the_prompt_is_known_once_it_is_built_or_its_failure() -> None:
    async def test() -> None:
        stream = DeltaStream(1, RenderTurns())
        waiting = asyncio.ensure_future(stream.prompt_tokens())
        await asyncio.sleep(0)
        assert not waiting.done()
        stream.open(prompt_tokens=10, image_tokens=4)
        assert await waiting == 10
        stream.fail(Unavailable("gone"))
        assert await stream.prompt_tokens() == 10
        failed = DeltaStream(1, RenderTurns())
        failed.fail(Unavailable("gone"))
        with pytest.raises(Unavailable):
            await failed.prompt_tokens()

    asyncio.run(test())


def test_a_failed_stream_raises_after_the_deltas_before_it() -> None:
    async def test() -> None:
        stream = DeltaStream(1, RenderTurns())
        stream.push(AnswerDelta(0, (Text("a"),), 1))
        stream.fail(Unavailable("gone"))
        assert (await anext(stream)).text == "a"
        with pytest.raises(Unavailable):
            await anext(stream)

    asyncio.run(test())


@given(st.lists(st.tuples(st.integers(0, 2), st.text(max_size=3)), max_size=30))
def test_deltas_that_are_not_read_are_merged_without_a_change_of_the_text(pushed: list[tuple[int, str]]) -> None:
    async def test() -> list[AnswerDelta]:
        stream = DeltaStream(3, RenderTurns())
        for index, text in pushed:
            stream.push(AnswerDelta(index, (Text(text),), 1))
        for index in range(3):
            stream.push(AnswerDelta(index, (), 0, "stop"))
        return [delta async for delta in stream]

    read = asyncio.run(test())
    assert len(read) == 3
    for delta in read:
        texts = [text for index, text in pushed if index == delta.index]
        assert (delta.text, delta.num_tokens, delta.finish) == ("".join(texts), len(texts), "stop")


def _backlog(stream: DeltaStream, indices: range = range(1)) -> None:
    """An answer of BACKLOG tokens a choice with log-probabilities, all of it unread."""
    vocabulary = Vocabulary(byte_tokenizer())
    packed = pack([(65, -0.5)] * (TOP + 1))
    for token in range(BACKLOG):
        for index in indices:
            finish = "length" if token == BACKLOG - 1 else None
            stream.push(
                AnswerDelta(index, (Text("a"),), 1, finish, logprobs=(TokenLogprobs(vocabulary, packed, False),))
            )


def test_a_backlog_with_logprobs_is_read_in_small_parts_and_in_order() -> None:
    async def test() -> list[AnswerDelta]:
        stream = DeltaStream(1, RenderTurns())
        _backlog(stream)
        return [delta async for delta in stream]

    read = asyncio.run(test())
    assert [len(delta.logprobs) for delta in read] == [len(delta.text) for delta in read]
    assert sum(delta.num_tokens for delta in read) == BACKLOG
    assert max(len(delta.logprobs) for delta in read) * (TOP + 1) <= 400


class _Iterations:
    """Counts the log-probabilities that are rendered in each iteration of the event loop."""

    def __init__(self) -> None:
        self.rendered = [0]
        self._handle: asyncio.Handle | None = None

    def count(self, delta: AnswerDelta) -> None:
        self.rendered[-1] += len(delta.logprobs) * (TOP + 1)
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._handle = None
        self.rendered.append(0)


def test_an_iteration_of_the_loop_renders_a_bounded_part_of_all_backlogs_together() -> None:
    async def test() -> list[int]:
        turns, iterations = RenderTurns(), _Iterations()

        async def read(stream: DeltaStream) -> None:
            async for delta in stream:
                iterations.count(delta)

        streams = [DeltaStream(1, turns) for _ in range(12)]
        for stream in streams:
            _backlog(stream)
        await asyncio.gather(*map(read, streams))
        return iterations.rendered

    rendered = asyncio.run(test())
    assert sum(rendered) == 12 * BACKLOG * (TOP + 1)
    assert max(rendered) <= 2000


def test_a_stream_at_its_normal_pace_is_read_without_delay() -> None:
    async def test() -> None:
        turns = RenderTurns()
        busy, normal = DeltaStream(1, turns), DeltaStream(1, turns)
        normal.push(AnswerDelta(0, (Text("a"),), 1))
        reading = anext(normal)
        with pytest.raises(StopIteration):  # returns without giving up control
            reading.__await__().__next__()  # type: ignore[attr-defined]
        assert busy.complete is False

    asyncio.run(test())


def test_a_reader_that_is_cancelled_while_it_waits_for_its_turn_holds_up_nobody() -> None:
    async def test() -> None:
        turns = RenderTurns(limit=1)
        turns.spend(2)
        waiting = [asyncio.ensure_future(turns.wait(lambda: 1)) for _ in range(20)]
        await asyncio.sleep(0)
        for task in waiting[:15]:
            task.cancel()
        async with asyncio.timeout(10):
            await asyncio.gather(*waiting[15:])

    asyncio.run(test())


@dataclass
class _Task:
    """In place of a RequestTask."""

    call: GenerateCall
    deltas: DeltaStream
    aborted: bool = False

    def abort(self) -> None:
        self.aborted = True

    def response_ended(self) -> None: ...


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_rendering_stops_when_the_client_disconnects(stream: bool) -> None:
    """The client is gone before the first event. A transport whose connection is lost takes everything at once."""

    async def test() -> None:
        call = generate_call(n=16, stream=stream, sampling=SamplingParams(max_tokens=4, temperature=0, logprobs=TOP))
        task = _Task(call, DeltaStream(16, RenderTurns()))
        _backlog(task.deltas, range(16))
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        response, connection = TaskResponse(task, ChatAnswer()), Connection()  # type: ignore[arg-type]
        connection.lose()
        await response(connection.scope, connection.receive, send)
        assert task.aborted
        whole_nbytes = 16 * BACKLOG * (TOP + 1) * 60  # at least
        assert sum(len(message.get("body", b"")) for message in sent) < whole_nbytes / 50

    asyncio.run(test())


def test_memory_of_unread_deltas_is_reserved_until_they_are_read_or_nobody_reads_them() -> None:
    async def test() -> None:
        held = [0]
        stream = DeltaStream(1, RenderTurns(), held.append)
        for number in range(3):
            stream.push(AnswerDelta(0, (Text("x" * 1000 * number),), 1))
        assert held == sorted(held)
        assert held[-1] > 3000
        await anext(stream)
        assert held[-1] == 0, "merged deltas are read as one"
        stream.push(AnswerDelta(0, (Text("y" * 1000),), 1))
        stream.hold(5000)  # what a reader keeps
        assert held[-1] > 6000
        stream.close()
        stream.push(AnswerDelta(0, (Text("too late"),), 1, "stop"))
        assert held[-1] == 0

    asyncio.run(test())


def test_a_delta_for_which_there_is_no_memory_is_not_added() -> None:
    def reserve(nbytes: int) -> None:
        if nbytes > 5000:
            raise Unavailable("no memory")

    async def test() -> None:
        stream = DeltaStream(1, RenderTurns(), reserve)
        stream.push(AnswerDelta(0, (Text("short"),), 1))
        with pytest.raises(Unavailable):
            stream.push(AnswerDelta(0, (Text("x" * 5000),), 1))
        assert (await anext(stream)).text == "short"

    asyncio.run(test())
