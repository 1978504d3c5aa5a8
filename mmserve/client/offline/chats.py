"""Conversations with a running server: bodies, many requests at once, answers in order."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tqdm import tqdm

from mmserve.client.completions import ServerError, refusal
from mmserve.client.offline.answer import Answer, read_answer
from mmserve.client.offline.asked import Question
from mmserve.client.offline.conversation import body_of, is_one, paired
from mmserve.client.offline.stream import CHAT_PATH, STREAMED, AsyncStream
from mmserve.client.own_server import OwnServer
from mmserve.client.pictures import PictureError
from mmserve.client.posts import PostClient

_PATIENCE_S = 60.0
"""For a process of the server that is being restarted."""


class Chats:
    """``model``: its name in requests. For one event loop."""

    def __init__(self, client: PostClient, model: str, max_in_flight: int) -> None:
        self._client = client
        self._model = model
        self._max_in_flight = max_in_flight

    @classmethod
    async def connect(cls, own: OwnServer, max_in_flight: int) -> Chats:
        """Raises ServerError."""
        client = PostClient(own.url, own.api_key, _PATIENCE_S)
        try:
            reply = await client.get("/v1/models")
            if reply.status != 200:
                raise ServerError(refusal(reply.status, reply.content))
            return cls(client, json.loads(reply.content)["data"][0]["id"], max_in_flight)
        except BaseException:  # the client has connections
            await client.aclose()
            raise

    async def aclose(self) -> None:
        """Close all connections, which ends the requests that are under way."""
        await self._client.aclose()

    async def chat(self, question: Question, *, progress: bool) -> Any:
        """An Answer, or a list of them. See ``Asked.chat``."""
        if is_one(question.messages):
            return await self._answer(question)
        pairs = paired(question.messages, question.images)
        each = [question._replace(messages=messages, images=images) for messages, images in pairs]
        return await self._answers(each, progress=progress)

    def stream(self, question: Question) -> AsyncStream:
        """See ``Asked.stream``."""
        if not is_one(question.messages) or question.fields.get("n") not in (None, 1):
            raise ValueError("stream answers one conversation, once")
        return AsyncStream(self._client, self._body(question, streamed=True))

    async def _answers(self, questions: Sequence[Question], *, progress: bool) -> list[Answer]:
        slots = asyncio.Semaphore(self._max_in_flight)
        with tqdm(total=len(questions), unit="answer", disable=not progress) as bar:

            async def one(question: Question) -> Answer:
                async with slots:
                    try:
                        answer = await self._answer(question)
                    except (ServerError, PictureError, ValueError, TypeError) as error:
                        answer = Answer(error=str(error))
                bar.update()
                return answer

            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(question)) for question in questions]
        return [task.result() for task in tasks]

    async def _answer(self, question: Question) -> Answer:
        body = await self._body(question)()
        started_s = time.monotonic()
        reply = await self._client.post(CHAT_PATH, body)
        return read_answer(reply, time.monotonic() - started_s)

    def _body(self, question: Question, *, streamed: bool = False) -> Callable[[], Awaitable[bytes]]:
        """Makes the JSON of a body, in a thread if there are pictures to be read."""

        def encode() -> bytes:
            body = body_of(self._model, question.messages, question.images, question.schema, question.fields)
            return json.dumps({**body, **STREAMED} if streamed else body).encode()

        async def make() -> bytes:
            return encode() if question.images is None else await asyncio.to_thread(encode)

        return make
