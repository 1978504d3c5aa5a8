"""Pictures by the client's own names through the routes that take chat messages."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from mmserve.messages.request import GenerateRequest
from tests.fakes.http.http_services import IMAGE_TOKENS
from tests.fakes.http.http_upstream import Upstream
from tests.fakes.http.http_worker import Worker, http_worker, run


def messages(url: str | None, uuid: str = "pet") -> list[dict[str, Any]]:
    part = {"type": "image_url", "image_url": None if url is None else {"url": url}, "uuid": uuid}
    return [{"role": "user", "content": [{"type": "text", "text": "a"}, part]}]


async def post(worker: Worker, path: str, key: str = "", **body: Any) -> httpx2.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx2.AsyncClient(base_url=worker.url, timeout=20, headers=headers) as http:
        answer = await http.post(path, json={"model": "stub"} | body)
    await worker.idle()
    return answer


async def embed(upstream: Upstream, request: GenerateRequest) -> None:
    upstream.reply(request, finish="length", embedding=bytes(32))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings", "/tokenize"])
def test_a_picture_may_be_named_after_it_was_sent(path: str) -> None:
    async def test() -> None:
        async with http_worker() as worker:
            worker.leases.state = "hit"
            unknown = await post(worker, path, messages=messages(None))
            assert unknown.status_code == 400
            error = unknown.json()["error"]
            assert (error["param"], error["code"]) == ("messages[0].content[1].uuid", "media_not_stored")
            assert "send the image's data" in error["message"]
            assert not worker.upstream.requests()
            assert (await post(worker, "/v1/chat/completions", messages=messages("data:cat"))).status_code == 200
            if path == "/v1/embeddings":
                worker.upstream.behave = embed
            named = await post(worker, path, messages=messages(None))
            assert named.status_code == 200
            if path == "/tokenize":
                assert named.json()["count"] == 1 + IMAGE_TOKENS
            else:
                sent, again = worker.upstream.requests()
                assert sent.prompt_ids == again.prompt_ids
                assert [span.start for span in again.spans] == [1]

    run(test)


def test_a_stream_of_an_unknown_name_is_refused_before_it_begins() -> None:
    async def test() -> None:
        async with http_worker() as worker:
            answer = await post(worker, "/v1/chat/completions", messages=messages(None), stream=True)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "media_not_stored")

    run(test)


def test_a_name_belongs_to_its_key_and_salt(tmp_path: Any) -> None:
    keys = tmp_path / "keys"
    keys.write_text("ann sk-ann-0123456789abcdef\nbob sk-bob-0123456789abcdef\n")
    keys.chmod(0o600)

    async def test() -> None:
        async with http_worker(api_key_file=str(keys)) as worker:
            ann, bob = "sk-ann-0123456789abcdef", "sk-bob-0123456789abcdef"
            chat = "/v1/chat/completions"
            sent = await post(worker, chat, ann, messages=messages("data:cat"), cache_salt="s")
            assert sent.status_code == 200, sent.text
            statuses = [
                (await post(worker, chat, key, messages=messages(None), cache_salt=salt)).status_code
                for key, salt in ((ann, "s"), (bob, "s"), (ann, ""))
            ]
            assert statuses == [200, 400, 400]

    run(test)
