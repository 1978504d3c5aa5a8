"""A picture that kills its decoder is refused with its field; requests beside it are answered as if it had not come."""

from __future__ import annotations

import asyncio
import base64

import openai
import pytest

from tests.e2e.stack import Stack, running
from tests.fakes.pictures.deadly_pictures import deadly_png, make_deadly
from training.sample import samples

CLIENTS = 6


async def _ask(client: openai.AsyncOpenAI, messages: object, salt: str) -> str:
    reply = await client.chat.completions.create(
        model="llava", messages=messages, temperature=0, extra_body={"cache_salt": salt}
    )
    return reply.choices[0].message.content or ""


async def _refused(client: openai.AsyncOpenAI, what: str, seed: int) -> str:
    """Ask about a deadly picture. Returns the message of the 400."""
    url = "data:image/png;base64," + base64.b64encode(deadly_png(what, seed)).decode()
    content = [{"type": "text", "text": "what is it?"}, {"type": "image_url", "image_url": {"url": url}}]
    with pytest.raises(openai.BadRequestError) as caught:
        await _ask(client, [{"role": "user", "content": content}], "deadly")
    assert caught.value.param == "messages[0].content[1].image_url.url"
    return caught.value.message


@pytest.mark.faults
def test_deadly_pictures_are_refused_and_nobody_else_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    make_deadly(monkeypatch)
    asked = list(samples(CLIENTS, 310_007, kinds=("colour", "word")))

    async def scenario(stack: Stack) -> None:
        async with stack.async_client() as client:
            alone = [await _ask(client, sample.messages, "alone") for sample in asked]
            for death, what in enumerate(("segfault", "exit", "segfault")):
                deadly = asyncio.create_task(_refused(client, what, death))
                beside = await asyncio.gather(*(_ask(client, sample.messages, f"{death}") for sample in asked))
                assert beside == alone
                assert "ends its decoder" in await deadly

    with running() as stack:
        (first,) = stack.processes("mmserve: visualserver")
        asyncio.run(scenario(stack))
        assert stack.metric("process_restarts_total", role="visualserver") == 1, "the others ended a child process only"
        assert stack.processes("mmserve: visualserver") != [first]
