"""Clients of a drill notice every difference from the undisturbed answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import httpx2
import pytest

from mmserve.cli.chaos.clients import Clients, Failed, Outcome
from mmserve.cli.chaos.questions import Question, default_questions

QUESTION = Question({"messages": [], "temperature": 0})


def events(text: str, *, finish: str | None = "stop", done: bool = True) -> list[dict[str, Any] | str]:
    pieces: list[dict[str, Any] | str] = [{"choices": [{"index": 0, "delta": {"content": letter}}]} for letter in text]
    if finish:
        pieces.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    return [*pieces, "[DONE]"] if done else pieces


def streamed(pieces: Sequence[dict[str, Any] | str]) -> httpx2.Response:
    async def body() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield f"data: {piece if isinstance(piece, str) else json.dumps(piece)}\n\n".encode()

    return httpx2.Response(200, content=body())


def outcomes(*answers: httpx2.Response | Exception, question: Question = QUESTION) -> list[Outcome]:
    """The first answer is that of the undisturbed run; the others are judged, until one request has its outcome."""
    left = list(answers)

    def handle(request: httpx2.Request) -> httpx2.Response:
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def scenario() -> list[Outcome]:
        clients = Clients("http://server", "m", [question], transport=httpx2.MockTransport(handle))
        await clients.ask_undisturbed(1)
        asked = iter((False, True))
        await clients.ask_until(1, lambda: next(asked))
        await clients.close()
        return clients.outcomes

    return asyncio.run(scenario())


def test_the_same_answer_is_right() -> None:
    (outcome,) = outcomes(streamed(events("abc")), streamed(events("abc")))
    assert (outcome.verdict, outcome.num_refusals) == ("right", 0)


@pytest.mark.parametrize("other", [events("ab"), events("abbc"), events("abc", finish="length"), events("abd")])
def test_a_lost_or_doubled_character_or_another_ending_is_wrong(other: list[dict[str, Any] | str]) -> None:
    (outcome,) = outcomes(streamed(events("abc")), streamed(other))
    assert outcome.verdict == "wrong"
    assert "instead of" in outcome.detail


def test_another_logprob_token_is_wrong() -> None:
    def with_token(token: str) -> list[dict[str, Any] | str]:
        first: dict[str, Any] = {"index": 0, "delta": {"content": "a"}, "logprobs": {"content": [{"token": token}]}}
        return [{"choices": [first]}, *events("", finish="stop")]

    (outcome,) = outcomes(streamed(with_token("a")), streamed(with_token("b")))
    assert outcome.verdict == "wrong"


def test_an_error_event_is_a_failure_and_a_cut_stream_a_broken_connection() -> None:
    failed = streamed([*events("a", finish=None, done=False), {"error": {"message": "lost"}}, "[DONE]"])
    assert [outcome.verdict for outcome in outcomes(streamed(events("abc")), failed)] == ["failed"]
    cut = streamed(events("ab", finish=None, done=False))
    assert [outcome.verdict for outcome in outcomes(streamed(events("abc")), cut)] == ["broken"]
    refused = httpx2.ConnectError("refused")
    assert [outcome.verdict for outcome in outcomes(streamed(events("abc")), refused)] == ["broken"]


def test_refusals_are_waited_out_and_counted() -> None:
    busy = [httpx2.Response(status, headers={"retry-after": "0"}, text="busy") for status in (429, 503)]
    (outcome,) = outcomes(streamed(events("abc")), *busy, streamed(events("abc")))
    assert (outcome.verdict, outcome.num_refusals) == ("right", 2)


def test_some_requests_have_a_salt_so_that_their_pictures_are_encoded_again() -> None:
    salts: list[str | None] = []

    def handle(request: httpx2.Request) -> httpx2.Response:
        salts.append(json.loads(request.content).get("cache_salt"))
        return streamed(events("abc"))

    async def scenario() -> None:
        clients = Clients("http://server", "m", [QUESTION], transport=httpx2.MockTransport(handle))
        await clients.ask_undisturbed(1)
        await clients.ask_until(1, lambda: len(salts) > 8)
        await clients.close()

    asyncio.run(scenario())
    assert [bool(salt) for salt in salts] == [False, *([False] * 3 + [True]) * 2]
    assert len(set(salts)) == 3


@pytest.mark.parametrize("status", [400, 500])
def test_other_errors_are_failures(status: int) -> None:
    (outcome,) = outcomes(streamed(events("abc")), httpx2.Response(status, text="no"))
    assert (outcome.verdict, outcome.detail) == ("failed", f"status {status}: no")


def test_an_undisturbed_run_must_give_the_answer_known_beforehand() -> None:
    known = Question(QUESTION.body, expected="abc")
    assert outcomes(streamed(events(" abc")), streamed(events(" abc")), question=known)[0].verdict == "right"
    with pytest.raises(ExceptionGroup) as raised:
        outcomes(streamed(events("abd")), question=known)
    assert raised.group_contains(Failed, match="wrong answer in an undisturbed run")


def test_default_questions_are_of_every_style_and_the_same_again() -> None:
    first, again = (default_questions(16, pictures=True) for _ in range(2))
    assert first == again
    has: Callable[[str], bool] = lambda key: any(key in question.body for question in first)  # noqa: E731
    assert all(map(has, ("seed", "logprobs", "n", "top_p")))
    parts = [part["type"] for question in first for part in question.body["messages"][0]["content"]]
    assert parts.count("image_url") == 12
    text_only = default_questions(4, pictures=False)
    assert not any("image_url" in str(question.body) for question in text_only)
