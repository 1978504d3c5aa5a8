"""The dispatcher: replies reach their requests, restarts resend, and a disconnect waits for the terminal reply."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec
import pytest

from mmserve.httpserver.engine.dispatcher import MAX_RESENDS, Dispatcher
from mmserve.httpserver.engine.links import Destination
from mmserve.httpserver.engine.live_sequence import MediaLost
from mmserve.messages.logprobs import row_nbytes
from mmserve.messages.media import Handle, MediaSpan
from mmserve.messages.reply import ServerPhase, TokenReply
from mmserve.messages.request import AbortRequest, GenerateRequest
from mmserve.messages.sampling import SamplingParams
from mmserve.metrics.client import MetricsClient
from tests.fakes.samples import Samples

Sent = tuple[Destination, GenerateRequest | AbortRequest]


class RecordingLinks:
    """Visual server ``item_id`` of the first image that is to be encoded."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []

    def choose(self, request: GenerateRequest) -> Destination:
        return next((span.item_id for span in request.spans if span.data is not None), None)

    def send(self, destination: Destination, message: GenerateRequest | AbortRequest) -> None:
        self.sent.append((destination, message))


def request(id: str = "r", *, image: bool = False, visual: int = 0) -> GenerateRequest:
    handle = Handle(1, 0, 8)
    span = MediaSpan(start=0, num_tokens=1, item_id=visual, data=handle, embed=handle, media_index=0)
    return GenerateRequest(
        id=id,
        reply_to=0,
        prompt_ids=b"",
        spans=(span,) if image else (),
        sampling=SamplingParams(max_tokens=9),
        arrival_s=0.0,
    )


def phase(**epochs: Any) -> ServerPhase:
    return ServerPhase(phase="ready", ready=True, **epochs)


def epochs(name: str, value: int) -> dict[str, Any]:
    return {name: (value,) if name == "visual_epochs" else value}


def make(abort_timeout_s: float = 30.0) -> tuple[Dispatcher, RecordingLinks]:
    links = RecordingLinks()
    dispatcher = Dispatcher(0, links, cast(MetricsClient, Samples()), abort_timeout_s=abort_timeout_s)
    dispatcher.on_phase(phase())
    return dispatcher, links


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(test(), 10)

    asyncio.run(limited())


def tokens(*ids: int) -> bytes:
    return array("q", ids).tobytes()


def test_replies_arrive_in_order_and_end_with_the_terminal_one() -> None:
    async def test() -> None:
        dispatcher, links = make()
        async with dispatcher.submit(request()) as replies:
            dispatcher.deliver(TokenReply(id="other", token_ids=(9,), finish="stop"))
            dispatcher.deliver(TokenReply(id="r", token_ids=(1,)))
            dispatcher.deliver(TokenReply(id="r", token_ids=(2,), finish="stop"))
            assert [reply.token_ids async for reply in replies] == [(1,), (2,)]
        assert [type(message) for _, message in links.sent] == [GenerateRequest]
        assert dispatcher.num_live == 0

    run(test)


def test_leaving_early_aborts_at_the_same_destination_and_waits_for_the_terminal_reply() -> None:
    async def test() -> None:
        dispatcher, links = make()

        async def leave() -> None:
            async with dispatcher.submit(request(image=True)):
                pass

        leaving = asyncio.create_task(leave())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert links.sent[-1] == (0, AbortRequest(id="r", reply_to=0))
        leaving.cancel()
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.sleep(0)
        assert not leaving.done()
        dispatcher.deliver(TokenReply(id="r", finish="abort"))
        with pytest.raises(asyncio.CancelledError):
            await leaving

    run(test)


def test_the_wait_for_a_dead_engine_is_bounded() -> None:
    async def test() -> None:
        dispatcher, _ = make(abort_timeout_s=0.01)
        async with dispatcher.submit(request()):
            pass
        assert dispatcher.num_live == 0

    run(test)


def test_after_an_engine_restart_every_live_request_is_sent_again_with_its_output() -> None:
    async def test() -> None:
        dispatcher, links = make()
        async with dispatcher.submit(request(image=True)) as replies:
            dispatcher.deliver(TokenReply(id="r", token_ids=(1, 2)))
            dispatcher.on_phase(phase(engine_epoch=1))
            destination, again = links.sent[-1]
            assert isinstance(again, GenerateRequest)
            assert (destination, again.attempt, again.output_ids) == (None, 1, tokens(1, 2)), "its image is encoded"
            dispatcher.deliver(TokenReply(id="r", token_ids=(3,), finish="stop"))
            dispatcher.deliver(TokenReply(id="r", attempt=1, token_ids=(3,), finish="stop"))
            assert [reply.token_ids async for reply in replies] == [(1, 2), (3,)]

    run(test)


def test_prompt_logprobs_that_have_come_are_not_asked_for_again() -> None:
    async def test() -> None:
        dispatcher, links = make()
        sent = request()
        sent = msgspec.structs.replace(sent, sampling=msgspec.structs.replace(sent.sampling, prompt_logprobs=2))
        async with dispatcher.submit(sent) as replies:
            dispatcher.deliver(TokenReply(id="r", prompt_logprobs=bytes(2 * row_nbytes(2))))
            dispatcher.on_phase(phase(engine_epoch=1))
            assert (links.sent[-1][1].attempt, links.sent[-1][1].num_prompt_logprobs) == (1, 2)
            dispatcher.deliver(TokenReply(id="r", attempt=1, prompt_logprobs=bytes(row_nbytes(2))))
            dispatcher.deliver(TokenReply(id="r", attempt=1, finish="media_lost"))
            assert len((await anext(replies)).prompt_logprobs) == 2 * row_nbytes(2)
            assert len((await anext(replies)).prompt_logprobs) == row_nbytes(2)
            with pytest.raises(MediaLost) as lost:
                await anext(replies)
        assert (lost.value.next_attempt, lost.value.num_prompt_logprobs) == (2, 3)

    run(test)


def test_after_a_visual_server_restart_only_its_unanswered_requests_are_sent_again() -> None:
    async def test() -> None:
        dispatcher, links = make()
        async with (
            dispatcher.submit(request("waits", image=True)),
            dispatcher.submit(request("has a token", image=True)),
            dispatcher.submit(request("text")),
        ):
            dispatcher.deliver(TokenReply(id="has a token", token_ids=(1,)))
            before = len(links.sent)
            dispatcher.on_phase(phase(visual_epochs=(1,)))
            sent = [(destination, message.id, message.attempt) for destination, message in links.sent[before:]]
            assert sent == [(0, "waits", 1)]
            for id, attempt in (("waits", 1), ("has a token", 0), ("text", 0)):
                dispatcher.deliver(TokenReply(id=id, attempt=attempt, finish="stop"))

    run(test)


def test_a_restart_of_one_visual_server_leaves_the_requests_of_another_alone() -> None:
    async def test() -> None:
        dispatcher, links = make()
        async with (
            dispatcher.submit(request("at 0", image=True, visual=0)),
            dispatcher.submit(request("at 1", image=True, visual=1)),
        ):
            before = len(links.sent)
            dispatcher.on_phase(phase(visual_epochs=(0, 1)))
            assert [(to, message.id, message.attempt) for to, message in links.sent[before:]] == [(1, "at 1", 1)]
            for id, attempt in (("at 0", 0), ("at 1", 1)):
                dispatcher.deliver(TokenReply(id=id, attempt=attempt, finish="stop"))

    run(test)


def test_lost_media_is_raised_with_the_output_so_far() -> None:
    async def test() -> None:
        dispatcher, links = make()
        async with dispatcher.submit(request(image=True)) as replies:
            dispatcher.deliver(TokenReply(id="r", token_ids=(5,)))
            dispatcher.deliver(TokenReply(id="r", finish="media_lost"))
            assert (await anext(replies)).token_ids == (5,)
            with pytest.raises(MediaLost) as lost:
                await anext(replies)
        assert (lost.value.next_attempt, lost.value.output_ids) == (1, tokens(5))
        assert len(links.sent) == 1

    run(test)


def test_a_cache_server_restart_loses_the_media_of_unanswered_requests() -> None:
    async def test() -> None:
        dispatcher, links = make()

        async def first_reply() -> None:
            async with dispatcher.submit(request(image=True)) as replies:
                await anext(replies)

        async with dispatcher.submit(request("text")):
            waiting = asyncio.create_task(first_reply())
            await asyncio.sleep(0)
            dispatcher.on_phase(phase(cache_epoch=1))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert isinstance(links.sent[-1][1], AbortRequest)
            dispatcher.deliver(TokenReply(id="r", finish="abort"))
            with pytest.raises(MediaLost):
                await waiting
            dispatcher.deliver(TokenReply(id="text", finish="stop"))

    run(test)


@pytest.mark.parametrize(("epoch", "ends"), [("engine_epoch", True), ("visual_epochs", False)])
def test_an_abort_survives_restarts(epoch: str, ends: bool) -> None:
    async def test() -> None:
        dispatcher, links = make()

        async def leave() -> None:
            async with dispatcher.submit(request(image=True)):
                pass

        leaving = asyncio.create_task(leave())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        dispatcher.on_phase(phase(**epochs(epoch, 1)))
        if not ends:
            assert links.sent[-1] == (None, AbortRequest(id="r", reply_to=0))
            dispatcher.deliver(TokenReply(id="r", finish="abort"))
        await leaving

    run(test)


def test_a_sequence_of_an_earlier_process_is_aborted() -> None:
    async def test() -> None:
        dispatcher, links = make()
        dispatcher.deliver(TokenReply(id="old", attempt=2, token_ids=(7,)))
        dispatcher.deliver(TokenReply(id="older", token_ids=(7,), finish="length"))
        assert links.sent == [(None, AbortRequest(id="old", reply_to=0, attempt=2))]

    run(test)


class FullLinks(RecordingLinks):
    def send(self, destination: Destination, message: GenerateRequest | AbortRequest) -> None:
        raise OverflowError("a number too large for a message")


def test_a_request_that_cannot_be_sent_is_not_live() -> None:
    async def test() -> None:
        dispatcher = Dispatcher(0, FullLinks(), cast(MetricsClient, Samples()))
        with pytest.raises(OverflowError):
            async with dispatcher.submit(request()):
                pass
        assert dispatcher.num_live == 0

    run(test)


@pytest.mark.parametrize("image", [False, True])
def test_a_request_is_failed_after_too_many_restarts_without_a_token(image: bool) -> None:
    async def test() -> None:
        dispatcher, links = make()
        async with dispatcher.submit(request(image=image)) as replies:
            for restart in range(1, 10):
                dispatcher.on_phase(phase(engine_epoch=restart))
            last = [reply async for reply in replies][-1]
        assert (last.finish, last.attempt) == ("error", MAX_RESENDS)
        assert "started again" in last.message
        sent = [type(message) for _, message in links.sent]
        assert sent == [GenerateRequest] * (1 + MAX_RESENDS) + [AbortRequest] * (1 + image)
        assert dispatcher.num_live == 0

    run(test)


def test_deaths_count_for_requests_that_were_computed_alone() -> None:
    async def test() -> None:
        dispatcher, links = make()
        async with dispatcher.submit(request("computed")) as computed, dispatcher.submit(request("waits")) as waits:
            dispatcher.on_phase(phase(engine_epoch=1))
            for attempt in (1, 2):
                dispatcher.deliver(TokenReply(id="computed", attempt=attempt))
                dispatcher.on_phase(phase(engine_epoch=1 + attempt))
            deaths = {
                message.id: message.num_deaths for _, message in links.sent if isinstance(message, GenerateRequest)
            }
            assert deaths == {"computed": 2, "waits": 1}
            assert [reply.finish async for reply in computed] == ["error"], "the third death"
            dispatcher.deliver(TokenReply(id="waits", attempt=3, token_ids=(1,), finish="stop"))
            assert [reply.finish async for reply in waits] == ["stop"]

    run(test)


def test_a_lost_reply_is_made_again() -> None:
    async def test() -> None:
        dispatcher, links = make()
        async with dispatcher.submit(request()) as replies:
            dispatcher.deliver(TokenReply(id="r", token_ids=(1,)))
            dispatcher.lose(TokenReply(id="r", token_ids=(2,)))
            dispatcher.lose(TokenReply(id="r", token_ids=(3,)))
            _, (_, again) = links.sent
            assert isinstance(again, GenerateRequest)
            assert (again.attempt, again.output_ids, again.num_deaths) == (1, tokens(1), 0)
            dispatcher.deliver(TokenReply(id="r", token_ids=(3,)))
            dispatcher.deliver(TokenReply(id="r", attempt=1, token_ids=(2, 3), finish="stop"))
            assert [id for reply in [each async for each in replies] for id in reply.token_ids] == [1, 2, 3]

    run(test)


def test_a_lost_reply_that_ends_an_abort_ends_it() -> None:
    async def test() -> None:
        dispatcher, links = make()

        async def leave() -> None:
            async with dispatcher.submit(request()):
                pass

        leaving = asyncio.create_task(leave())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        dispatcher.lose(TokenReply(id="r", token_ids=(2,)))
        dispatcher.lose(TokenReply(id="r", finish="abort"))
        await leaving
        assert [type(message) for _, message in links.sent] == [GenerateRequest, AbortRequest]

    run(test)


def test_a_request_that_cannot_be_sent_again_takes_no_other_along() -> None:
    async def test() -> None:
        dispatcher, links = make()
        send = links.send

        def fail_for_one(destination: Destination, message: GenerateRequest | AbortRequest) -> None:
            if message.id == "unlucky":
                raise MemoryError
            send(destination, message)

        async with dispatcher.submit(request("unlucky")) as unlucky, dispatcher.submit(request("other")) as other:
            links.send = fail_for_one  # type: ignore[method-assign]
            dispatcher.on_phase(phase(engine_epoch=1))
            assert [reply.finish async for reply in unlucky] == ["error"]
            dispatcher.deliver(TokenReply(id="other", attempt=1, token_ids=(1,), finish="stop"))
            assert [reply.finish async for reply in other] == ["stop"]

    run(test)


def test_a_request_outlives_any_number_of_deaths_of_its_visual_server() -> None:
    """The visual server refuses the image that kills it; the requests that wait beside it are not to blame."""

    async def test() -> None:
        dispatcher, links = make()
        async with dispatcher.submit(request(image=True)) as replies:
            for restart in range(1, 10):
                dispatcher.on_phase(phase(visual_epochs=(restart,)))
            assert [message.attempt for _, message in links.sent] == [*range(10)]
            dispatcher.deliver(TokenReply(id="r", attempt=9, finish="stop"))
            assert [reply.finish async for reply in replies] == ["stop"]

    run(test)


def test_a_request_that_gets_tokens_is_sent_again_without_limit() -> None:
    async def test() -> None:
        dispatcher, _ = make()
        async with dispatcher.submit(request()) as replies:
            for restart in range(1, 10):
                dispatcher.deliver(TokenReply(id="r", attempt=restart - 1, token_ids=(restart,)))
                dispatcher.on_phase(phase(engine_epoch=restart))
            dispatcher.deliver(TokenReply(id="r", attempt=9, finish="stop"))
            assert [id for reply in [each async for each in replies] for id in reply.token_ids] == [*range(1, 10)]

    run(test)
