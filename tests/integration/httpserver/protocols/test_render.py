"""What a chat completion becomes: its prompt in parts, and where each value of its sampling comes from."""

from __future__ import annotations

from array import array
from typing import Any

import httpx2

from mmserve.config.resolved.deployment import FIRST_VIRTUAL_TOKEN
from mmserve.httpserver.api.prompts.render import Features, Part, Place, features_of
from mmserve.messages.cache import StoredImage
from mmserve.messages.request import GenerateRequest
from tests.fakes.http.http_services import IMAGE_TOKENS
from tests.fakes.http.http_upstream import Behaviour, Upstream
from tests.fakes.http.http_worker import http_worker, run
from tests.integration.httpserver.protocols.test_chat import HELLO

PATH = "/v1/chat/completions/render"
PICTURE, OTHER = "data:image/png;base64,AAAA", "data:image/png;base64,BBBB"


def cached(num_tokens: int) -> Behaviour:
    async def behave(upstream: Upstream, request: GenerateRequest) -> None:
        upstream.reply(request, finish="length", num_cached_tokens=num_tokens)

    return behave


def _render(asked: list[GenerateRequest] | None = None, **fields: Any) -> dict[str, Any]:
    """``asked``: gets what the router was asked."""
    asked = [] if asked is None else asked

    async def test() -> dict[str, Any]:
        async with http_worker() as worker, httpx2.AsyncClient(base_url=worker.url) as http:
            worker.upstream.behave = cached(2)
            worker.leases.stored[PICTURE.encode()] = StoredImage("embedding", FIRST_VIRTUAL_TOKEN + 40)
            answer = await http.post(PATH, json={"model": "stub", "messages": HELLO, **fields})
            await worker.idle()
            asked.extend(message for message in worker.upstream.received if isinstance(message, GenerateRequest))
            assert all(request.look_up for request in asked), "nothing is generated"
            assert not worker.leases.held
            return {"status": answer.status_code, **answer.json()}

    return run(test)


def test_sources_of_sampling_are_named() -> None:
    found = _render(temperature=0.5, max_completion_tokens=7, top_p=None)
    sampling = {name: (one["value"], one["source"]) for name, one in found["sampling"].items()}
    assert sampling["temperature"] == (0.5, "request")
    assert sampling["max_tokens"] == (7, "request")
    assert sampling["top_p"][1] == "default"
    assert sampling["seed"] == (None, "default")
    assert sampling["grammar"] == (False, "default")


def test_without_a_limit_the_answer_may_fill_the_context() -> None:
    found = _render(seed=3)
    assert found["sampling"]["max_tokens"]["value"] == found["max_model_len"] - found["num_tokens"]
    assert found["sampling"]["seed"] == {"value": 3, "source": "request"}
    assert found["num_tokens"] == len(found["token_ids"]) == sum(part["tokens"] for part in found["parts"])


def test_what_would_be_refused_is_refused() -> None:
    found = _render(temperature=9)
    assert found["status"] == 400
    assert found["error"]["param"] == "temperature"


def _of(*urls: str) -> list[dict[str, Any]]:
    images = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"role": "user", "content": [{"type": "text", "text": "ab"}, *images, {"type": "text", "text": "c"}]}]


def test_what_the_server_has_already_is_shown_and_not_leased() -> None:
    asked: list[GenerateRequest] = []
    found = _render(asked, messages=_of(PICTURE, PICTURE), cache_salt="pepper")
    assert found["cached_tokens"] == 2
    assert [image["stored"] for image in found["images"]] == ["embedding"] * 2
    (request,) = asked
    rows = [FIRST_VIRTUAL_TOKEN + 40 + row for row in range(IMAGE_TOKENS)]
    assert array("q", request.prompt_ids).tolist() == [*b"ab", *rows, *rows, *b"c"]
    assert request.cache_salt == "pepper"


def test_pictures_have_their_keys_and_places_as_llm_d_reads_them() -> None:
    found = _render(messages=_of(PICTURE, OTHER, PICTURE))
    keys, places = (found["features"][name]["image"] for name in ("mm_hashes", "mm_placeholders"))
    assert keys == [image["key"] for image in found["images"]]
    assert keys[0] == keys[2] != keys[1]
    assert places == [{"offset": 2 + IMAGE_TOKENS * index, "length": IMAGE_TOKENS} for index in range(3)]
    assert _render()["features"] is None


def test_a_picture_of_several_runs_has_one_place() -> None:
    first, second = [Part(2, 4, image=0), Part(7, 4, image=0)], [Part(11, 3, image=1)]
    parts = [Part(0, 2, text="a"), first[0], Part(6, 1, text="b"), first[1], *second]
    found = features_of(parts, [b"\xaa", b"\xbb"])
    assert found == Features({"image": ["aa", "bb"]}, {"image": [Place(2, 9), Place(11, 3)]})


def test_a_prompt_is_looked_up_to_its_first_unknown_image() -> None:
    asked: list[GenerateRequest] = []
    found = _render(asked, messages=_of(PICTURE, OTHER, PICTURE))
    assert [image["stored"] for image in found["images"]] == ["embedding", "absent", "embedding"]
    looked_up = array("q", asked[0].prompt_ids).tolist()
    assert (looked_up[:2], looked_up[2 + IMAGE_TOKENS :]) == ([*b"ab"], [-1])


def test_parts_end_where_turns_do() -> None:
    found = _render(messages=[{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}])
    assert found["turns"] == [{"start": 0, "tokens": 6, "messages": [0, 1], "roles": ["user", "assistant"]}]


def test_each_prompt_of_a_completion_is_rendered() -> None:
    async def test() -> None:
        async with http_worker() as worker, httpx2.AsyncClient(base_url=worker.url) as http:
            body = {"model": "stub", "prompt": ["hi", "you"], "add_special_tokens": False}
            answer = await http.post("/v1/completions/render", json=body)
            assert answer.json() == [{"model": "stub", "token_ids": list(text.encode())} for text in ("hi", "you")]
            await worker.idle()
            assert not worker.upstream.received, "nothing is generated"

    run(test)
