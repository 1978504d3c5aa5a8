"""Token ids of prompts and their texts; what a worker tells of itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest

from mmserve.httpserver.call import MediaItem
from tests.fakes.http.http_services import EOS, IMAGE_TOKENS, VOCAB, StubMedia
from tests.fakes.http.http_worker import Worker, http_worker, run
from tests.integration.httpserver.protocols.test_anthropic import SEEN
from tests.integration.httpserver.protocols.test_chat import PICTURE
from tests.integration.httpserver.protocols.test_responses import PICTURE as SHOWN


async def post(worker: Worker, path: str, body: dict[str, Any]) -> httpx2.Response:
    async with httpx2.AsyncClient(base_url=worker.url, timeout=20) as http:
        answer = await http.post(path, json=body)
    await worker.idle()
    return answer


def test_a_text_becomes_tokens_and_these_a_text() -> None:
    async def test() -> None:
        async with http_worker() as worker:
            answer = (await post(worker, "/tokenize", {"prompt": "hé", "model": "stub"})).json()
            room = worker.context.deployment.max_model_len
            assert answer == {
                "count": 3,
                "max_model_len": room,
                "tokens": [*"hé".encode()],
                "token_strs": None,
                "images": [],
            }
            spelled = (await post(worker, "/tokenize", {"prompt": "hé", "return_token_strs": True})).json()
            assert spelled["token_strs"] == ["h", "Ã", "©"]
            back = await post(worker, "/detokenize", {"tokens": [*answer["tokens"], EOS]})
            assert back.json() == {"prompt": "hé</s>"}
            long = await post(worker, "/tokenize", {"prompt": "x" * 30_000, "return_token_strs": True})
            assert (long.json()["count"], len(long.json()["token_strs"])) == (30_000, 30_000)
            assert (await post(worker, "/detokenize", {"tokens": [120] * 9000})).json()["prompt"] == "x" * 9000

    run(test)


def test_the_tokens_of_a_picture_are_placeholders_and_nothing_is_leased() -> None:
    async def test() -> None:
        async with http_worker() as worker, worker.client() as client:
            tokens = (await post(worker, "/tokenize", {"messages": PICTURE})).json()
            assert tokens["tokens"] == [*b"what ", *[EOS] * IMAGE_TOKENS, *b"?"]
            assert tokens["images"] == [{"width": 8, "height": 8, "tokens": IMAGE_TOKENS}]
            assert not worker.leases.held
            assert not worker.upstream.requests()
            answer = await client.chat.completions.create(model="stub", messages=PICTURE)  # type: ignore[arg-type]
            assert answer.usage is not None
            assert answer.usage.prompt_tokens == tokens["count"]

    run(test)


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": PICTURE}, 400, "messages"),
        ("/tokenize", {"prompt": ["a"]}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": True}, 400, "add_generation_prompt"),
        ("/tokenize", {"messages": PICTURE, "add_special_tokens": True}, 400, "add_special_tokens"),
        ("/tokenize", {"messages": [{"role": "user"}]}, 400, "messages[0].content"),
        ("/tokenize", {"prompt": "a", "truncate": 3}, 400, "truncate"),
        ("/tokenize", {"prompt": "a", "model": "gpt-4"}, 404, "model"),
        ("/detokenize", {"tokens": [VOCAB]}, 400, "tokens"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens"),
        ("/detokenize", {"tokens": [2**70]}, 400, "tokens"),
        ("/detokenize", {"tokens": "abc"}, 400, "tokens"),
        ("/detokenize", {"tokens": [1], "skip": True}, 400, "skip"),
    ],
)
def test_every_refusal_names_its_field(path: str, body: dict[str, Any], status: int, param: str) -> None:
    async def test() -> None:
        async with http_worker() as worker:
            answer = await post(worker, path, body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)

    run(test)


def test_a_worker_that_is_not_ready_or_full_refuses_and_keys_are_asked_for() -> None:
    async def test() -> None:
        async with http_worker(ready=False) as worker:
            for path in ("/tokenize", "/detokenize"):
                assert (await post(worker, path, {"prompt": "a"})).status_code == 503
        async with http_worker(api_key="secret") as worker:
            for path in ("/tokenize", "/detokenize", "/v1/completions", "/v1/embeddings", "/score"):
                assert (await post(worker, path, {"prompt": "a"})).status_code == 401

    run(test)


@pytest.mark.parametrize(
    "path", ["/tokenize", "/v1/chat/completions/render", "/v1/messages/count_tokens", "/v1/responses/input_tokens"]
)
def test_who_looks_at_a_prompt_uses_the_salt_of_its_own_key(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keys").write_text("alice secret-a\nbob secret-b\n")
    read, salts = StubMedia.read, list[str]()

    async def noted(self: StubMedia, refs: Sequence[Any], cache_salt: str, processing: Any) -> list[MediaItem]:
        salts.append(cache_salt)
        return await read(self, refs, cache_salt, processing)

    monkeypatch.setattr(StubMedia, "read", noted)
    bodies: dict[str, dict[str, Any]] = {
        "/v1/messages/count_tokens": {"messages": SEEN},
        "/v1/responses/input_tokens": {"input": [SHOWN]},
    }
    body = {"model": "stub", **bodies.get(path, {"messages": PICTURE})}

    async def test() -> None:
        async with (
            http_worker(api_key_file=str(tmp_path / "keys")) as worker,
            httpx2.AsyncClient(base_url=worker.url, timeout=20) as http,
        ):
            for key in ("secret-a", "secret-b"):
                answer = await http.post(path, json=body, headers={"authorization": f"Bearer {key}"})
                assert answer.status_code == 200
            await worker.idle()

    run(test)
    assert len({*salts, ""}) == 3


def test_what_a_worker_tells_of_itself() -> None:
    async def test() -> None:
        async with http_worker() as worker, httpx2.AsyncClient(base_url=worker.url, timeout=20) as http:
            assert (await http.get("/load")).json() == {"server_load": 0}
            with worker.context.admission.admit():
                assert (await http.get("/load")).json() == {"server_load": 1}
            info = (await http.get("/server_info")).json()
            assert (info["model"], info["version"], info["max_model_len"]) == ("stub", "1.2.3", 512)
            assert "/models/" not in (await http.get("/server_info")).text

    run(test)
