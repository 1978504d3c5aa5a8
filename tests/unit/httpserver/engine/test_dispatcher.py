"""The dispatcher: replies reach their requests, restarts resend, and a disconnect waits for the terminal reply."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec
import pytest

from mmserve.httpserver.engine.dispatcher import MAX_RESENDS, Dispatcher
from mmserve.httpserver.engine.live_sequence import MediaLost
from mmserve.messages.logprobs import row_nbytes
from mmserve.messages.media import Handle, MediaSpan
from mmserve.messages.reply import ServerPhase, TokenReply
from mmserve.messages.request import AbortRequest, GenerateRequest, RequestMessage
from mmserve.messages.sampling import SamplingParams
from mmserve.monitoring.metrics.client import MetricsClient
from tests.fakes.processes.samples import Samples


class RecordingLink:
    def __init__(self) -> None:
        self.sent: list[RequestMessage] = []

    def send(self, message: RequestMessage) -> None:
        self.sent.append(message)


def request(id: str = "r", *, image: bool = False, num_images: int = 1) -> GenerateRequest:
    handle = Handle(1, 0, 8)
    spans = tuple(
        MediaSpan(start=index, num_tokens=1, item_id=10 + index, data=handle, embed=handle, media_index=index)
        for index in range(num_images)
    )
    return GenerateRequest(
        id=id,
        reply_to=0,
        prompt_ids=b"",
        spans=spans if image else (),
        sampling=SamplingParams(max_tokens=9),
        arrival_s=0.0,
    )


def phase(**epochs: Any) -> ServerPhase:
    return ServerPhase(phase="ready", ready=True, **epochs)


def epochs(name: str, value: int) -> dict[str, Any]:
    return {name: (value,) if name == "visual_epochs" else value}


def make(abort_timeout_s: float = 30.0) -> tuple[Dispatcher, RecordingLink]:
    link = RecordingLink()
    dispatcher = Dispatcher(0, link, cast(MetricsClient, Samples()), abort_timeout_s=abort_timeout_s)
    dispatcher.on_phase(phase())
    return dispatcher, link


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(test(), 10)

    asyncio.run(limited())


def tokens(*ids: int) -> bytes:
    return array("q", ids).tobytes()


def test_replies_arrive_in_order_and_end_with_the_terminal_one() -> None:
    async def test() -> None:
        dispatcher, link = make()
        async with dispatcher.submit(request()) as replies:
            dispatcher.deliver(TokenReply(id="other", token_ids=(9,), finish="stop"))
            dispatcher.deliver(TokenReply(id="r", token_ids=(1,)))
            dispatcher.deliver(TokenReply(id="r", token_ids=(2,), finish="stop"))
            assert [reply.token_ids async for reply in replies] == [(1,), (2,)]
        assert [type(message) for message in link.sent] == [GenerateRequest]
        assert dispatcher.num_live == 0

    run(test)


def test_leaving_early_aborts_and_waits_for_the_terminal_reply() -> None:
    async def test() -> None:
        dispatcher, link = make()

        async def leave() -> None:
            async with dispatcher.submit(request(image=True)):
                pass

        leaving = asyncio.create_task(leave())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert link.sent[-1] == AbortRequest(id="r", reply_to=0)
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
        dispatcher, link = make()
        async with dispatcher.submit(request(image=True)) as replies:
            dispatcher.deliver(TokenReply(id="r", token_ids=(1, 2)))
            dispatcher.on_phase(phase(engine_epoch=1))
            again = link.sent[-1]
            assert isinstance(again, GenerateRequest)
            assert (again.attempt, again.output_ids) == (1, tokens(1, 2))
            assert [span.data for span in again.spans] == [None], "its image is encoded"
            dispatcher.deliver(TokenReply(id="r", token_ids=(3,), finish="stop"))
            dispatcher.deliver(TokenReply(id="r", attempt=1, token_ids=(3,), finish="stop"))
            assert [reply.token_ids async for reply in replies] == [(1, 2), (3,)]

    run(test)


def test_prompt_logprobs_that_have_come_are_not_asked_for_again() -> None:
    async def test() -> None:
        dispatcher, link = make()
        sent = request()
        sent = msgspec.structs.replace(sent, sampling=msgspec.structs.replace(sent.sampling, prompt_logprobs=2))
        async with dispatcher.submit(sent) as replies:
            dispatcher.deliver(TokenReply(id="r", prompt_logprobs=bytes(2 * row_nbytes(2))))
            dispatcher.on_phase(phase(engine_epoch=1))
            assert (link.sent[-1].attempt, link.sent[-1].num_prompt_logprobs) == (1, 2)
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
        dispatcher, link = make()
        async with (
            dispatcher.submit(request("waits", image=True)),
            dispatcher.submit(request("has a token", image=True)),
            dispatcher.submit(request("text")),
        ):
            dispatcher.deliver(TokenReply(id="has a token", token_ids=(1,)))
            before = len(link.sent)
            dispatcher.on_phase(phase(visual_epochs=(1,)))
            assert [(message.id, message.attempt) for message in link.sent[before:]] == [("waits", 1)]
            for id, attempt in (("waits", 1), ("has a token", 0), ("text", 0)):
                dispatcher.deliver(TokenReply(id=id, attempt=attempt, finish="stop"))

    run(test)


def test_an_image_that_was_not_encoded_is_so_in_the_next_attempt() -> None:
    async def test() -> None:
        dispatcher, link = make()
        async with dispatcher.submit(request(image=True, num_images=2)):
            dispatcher.deliver(TokenReply(id="r", token_ids=(1,), not_encoded=(11,)))
            dispatcher.deliver(TokenReply(id="r", token_ids=(2,)))
            dispatcher.on_phase(phase(visual_epochs=(1,)))
            again = link.sent[-1]
            assert isinstance(again, GenerateRequest)
            assert (again.attempt, again.output_ids) == (1, tokens(1, 2)), "it may be waiting for the image"
            assert [span.data is None for span in again.spans] == [True, False]
            dispatcher.deliver(TokenReply(id="r", attempt=1, token_ids=(3,)))
            dispatcher.on_phase(phase(visual_epochs=(2,)))
            assert link.sent[-1] is again, "the last attempt has had it encoded"
            dispatcher.deliver(TokenReply(id="r", attempt=1, finish="stop"))

    run(test)


@pytest.mark.parametrize("answered", [False, True])
def test_prompt_logprobs_do_not_mean_that_the_images_are_encoded(answered: bool) -> None:
    async def test() -> None:
        dispatcher, link = make()
        async with dispatcher.submit(request(image=True)):
            reply = TokenReply(id="r", token_ids=(1,)) if answered else TokenReply(id="r", prompt_logprobs=bytes(8))
            dispatcher.deliver(reply)
            dispatcher.on_phase(phase(visual_epochs=(1,)))
            assert [message.attempt for message in link.sent] == ([0] if answered else [0, 1])
            dispatcher.deliver(TokenReply(id="r", attempt=link.sent[-1].attempt, finish="stop"))

    run(test)


def test_lost_media_is_raised_with_the_output_so_far() -> None:
    async def test() -> None:
        dispatcher, link = make()
        async with dispatcher.submit(request(image=True)) as replies:
            dispatcher.deliver(TokenReply(id="r", token_ids=(5,)))
            dispatcher.deliver(TokenReply(id="r", finish="media_lost"))
            assert (await anext(replies)).token_ids == (5,)
            with pytest.raises(MediaLost) as lost:
                await anext(replies)
        assert (lost.value.next_attempt, lost.value.output_ids) == (1, tokens(5))
        assert len(link.sent) == 1

    run(test)


def test_a_cache_server_restart_loses_the_media_of_unanswered_requests() -> None:
    async def test() -> None:
        dispatcher, link = make()

        async def first_reply() -> None:
            async with dispatcher.submit(request(image=True)) as replies:
                await anext(replies)

        async with dispatcher.submit(request("text")):
            waiting = asyncio.create_task(first_reply())
            await asyncio.sleep(0)
            dispatcher.on_phase(phase(cache_epoch=1))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert isinstance(link.sent[-1], AbortRequest)
            dispatcher.deliver(TokenReply(id="r", finish="abort"))
            with pytest.raises(MediaLost):
                await waiting
            dispatcher.deliver(TokenReply(id="text", finish="stop"))

    run(test)


@pytest.mark.parametrize("then", ["engine_epoch", "visual_epochs", "a lost reply"])
def test_once_its_media_are_lost_a_sequence_makes_no_attempt_of_its_own(then: str) -> None:
    """The router ignores a second attempt of the same number, so nobody would answer it."""

    async def test() -> None:
        dispatcher, link = make()
        async with dispatcher.submit(request(image=True)) as replies:
            dispatcher.on_phase(phase(cache_epoch=1))
            if then == "a lost reply":
                dispatcher.lose(TokenReply(id="r", token_ids=(1,)))
            else:
                dispatcher.on_phase(phase(cache_epoch=1, **epochs(then, 1)))
            with pytest.raises(MediaLost) as lost:
                await anext(replies)
            dispatcher.deliver(TokenReply(id="r", finish="abort"))
        assert [message.attempt for message in link.sent] == [0]
        assert lost.value.next_attempt == 1

    run(test)


@pytest.mark.parametrize(("epoch", "ends"), [("engine_epoch", True), ("visual_epochs", False)])
def test_an_abort_survives_restarts(epoch: str, ends: bool) -> None:
    async def test() -> None:
        dispatcher, link = make()

        async def leave() -> None:
            async with dispatcher.submit(request(image=True)):
                pass

        leaving = asyncio.create_task(leave())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        dispatcher.on_phase(phase(**epochs(epoch, 1)))
        if not ends:
            assert link.sent[-1] == AbortRequest(id="r", reply_to=0), "the router has it"
            dispatcher.deliver(TokenReply(id="r", finish="abort"))
        await leaving

    run(test)


def test_a_sequence_of_an_earlier_process_is_aborted() -> None:
    async def test() -> None:
        dispatcher, link = make()
        dispatcher.deliver(TokenReply(id="old", attempt=2, token_ids=(7,)))
        dispatcher.deliver(TokenReply(id="older", token_ids=(7,), finish="length"))
        assert link.sent == [AbortRequest(id="old", reply_to=0, attempt=2)]

    run(test)


class FullLink(RecordingLink):
    def send(self, message: RequestMessage) -> None:
        raise OverflowError("a number too large for a message")


def test_a_request_that_cannot_be_sent_is_not_live() -> None:
    async def test() -> None:
        dispatcher = Dispatcher(0, FullLink(), cast(MetricsClient, Samples()))
        with pytest.raises(OverflowError):
            async with dispatcher.submit(request()):
                pass
        assert dispatcher.num_live == 0

    run(test)


@pytest.mark.parametrize("image", [False, True])
def test_a_request_is_failed_after_too_many_restarts_without_a_token(image: bool) -> None:
    async def test() -> None:
        dispatcher, link = make()
        async with dispatcher.submit(request(image=image)) as replies:
            for restart in range(1, 10):
                dispatcher.on_phase(phase(engine_epoch=restart))
            last = [reply async for reply in replies][-1]
        assert (last.finish, last.attempt) == ("error", MAX_RESENDS)
        assert "started again" in last.message
        sent = [type(message) for message in link.sent]
        assert sent == [GenerateRequest] * (1 + MAX_RESENDS) + [AbortRequest]
        assert dispatcher.num_live == 0

    run(test)


def test_deaths_count_for_requests_that_were_computed_alone() -> None:
    async def test() -> None:
        dispatcher, link = make()
        async with dispatcher.submit(request("computed")) as computed, dispatcher.submit(request("waits")) as waits:
            dispatcher.on_phase(phase(engine_epoch=1))
            for attempt in (1, 2):
                dispatcher.deliver(TokenReply(id="computed", attempt=attempt))
                dispatcher.on_phase(phase(engine_epoch=1 + attempt))
            deaths = {message.id: message.num_deaths for message in link.sent if isinstance(message, GenerateRequest)}
            assert deaths == {"computed": 2, "waits": 1}
            assert [reply.finish async for reply in computed] == ["error"], "the third death"
            dispatcher.deliver(TokenReply(id="waits", attempt=3, token_ids=(1,), finish="stop"))
            assert [reply.finish async for reply in waits] == ["stop"]

    run(test)


def test_a_lost_reply_is_made_again() -> None:
    async def test() -> None:
        dispatcher, link = make()
        async with dispatcher.submit(request()) as replies:
            dispatcher.deliver(TokenReply(id="r", token_ids=(1,)))
            dispatcher.lose(TokenReply(id="r", token_ids=(2,)))
            dispatcher.lose(TokenReply(id="r", token_ids=(3,)))
            _, again = link.sent
            assert isinstance(again, GenerateRequest)
            assert (again.attempt, again.output_ids, again.num_deaths) == (1, tokens(1), 0)
            dispatcher.deliver(TokenReply(id="r", token_ids=(3,)))
            dispatcher.deliver(TokenReply(id="r", attempt=1, token_ids=(2, 3), finish="stop"))
            assert [id for reply in [each async for each in replies] for id in reply.token_ids] == [1, 2, 3]

    run(test)


def test_a_lost_reply_that_ends_an_abort_ends_it() -> None:
    async def test() -> None:
        dispatcher, link = make()

        async def leave() -> None:
            async with dispatcher.submit(request()):
                pass

        leaving = asyncio.create_task(leave())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        dispatcher.lose(TokenReply(id="r", token_ids=(2,)))
        dispatcher.lose(TokenReply(id="r", finish="abort"))
        await leaving
        assert [type(message) for message in link.sent] == [GenerateRequest, AbortRequest]

    run(test)


def test_a_request_that_cannot_be_sent_again_takes_no_other_along() -> None:
    async def test() -> None:
        dispatcher, link = make()
        send = link.send

        def fail_for_one(message: RequestMessage) -> None:
            if message.id == "unlucky":
                raise MemoryError
            send(message)

        async with dispatcher.submit(request("unlucky")) as unlucky, dispatcher.submit(request("other")) as other:
            link.send = fail_for_one  # type: ignore[method-assign]
            dispatcher.on_phase(phase(engine_epoch=1))
            assert [reply.finish async for reply in unlucky] == ["error"]
            dispatcher.deliver(TokenReply(id="other", attempt=1, token_ids=(1,), finish="stop"))
            assert [reply.finish async for reply in other] == ["stop"]

    run(test)


def test_a_request_outlives_any_number_of_deaths_of_its_visual_server() -> None:
    """The visual server refuses the image that kills it; the requests that wait beside it are not to blame."""

    async def test() -> None:
        dispatcher, link = make()
        async with dispatcher.submit(request(image=True)) as replies:
            for restart in range(1, 10):
                dispatcher.on_phase(phase(visual_epochs=(restart,)))
            assert [message.attempt for message in link.sent] == [*range(10)]
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
