"""The OpenAPI document describes every route, and real answers are as it says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import jsonschema
import pytest

from mmserve.httpserver.api.relevance import PATHS
from mmserve.httpserver.api.smallest_bodies import OPTIONAL
from tests.fakes.http.http_upstream import say
from tests.fakes.http.http_worker import http_worker, run
from tests.integration.httpserver.protocols.test_chat import HELLO
from tests.integration.httpserver.protocols.test_embeddings import embed

BODIES: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [
        {"model": "stub", "messages": HELLO, "logprobs": True, "top_logprobs": 1, "n": 2},
        {"model": "stub", "messages": HELLO},
    ],
    "/v1/chat/completions/render": [{"model": "stub", "messages": HELLO, "temperature": 0}],
    "/v1/completions/render": [{"model": "stub", "prompt": ["Hello", "you"]}],
    "/v1/completions": [
        {"model": "stub", "prompt": ["a", "b"], "logprobs": 1},
        {"model": "stub", "prompt": [97], "stop": ["l"]},
    ],
    "/v1/embeddings": [{"input": "a"}, {"input": ["a"], "encoding_format": "base64"}],
    "/v1/messages": [{"model": "stub", "max_tokens": 9, "messages": HELLO}],
    "/v1/messages/count_tokens": [{"model": "stub", "messages": HELLO}],
    "/v1/responses": [{"model": "stub", "input": "hi"}],
    "/v1/responses/compact": [{"model": "stub", "input": "hi"}],
    "/v1/responses/input_tokens": [{"model": "stub", "input": "hi"}],
    "/v1/responses/{id}/cancel": [{}],
    "/tokenize": [{"prompt": "a"}, {"model": "stub", "messages": HELLO, "return_token_strs": True}],
    "/detokenize": [{"tokens": [97]}],
    "/admin/alloc": [{"concurrent_alloc_fraction": 0.5}],
    **{path: [{}] for path in PATHS},
}
FROM_METRICS_SERVER = ("/metrics", "/admin/state", "/admin/state/events")
"""Their answers are those of a process that does not run here."""


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def schema_of(operation: dict[str, Any], answer: httpx2.Response) -> dict[str, Any]:
    schema: dict[str, Any] = operation["responses"][str(answer.status_code)]["content"]["application/json"]["schema"]
    return schema


def test_every_answer_is_as_described() -> None:
    async def test() -> None:
        async with (
            http_worker(enable_admin=True) as worker,
            httpx2.AsyncClient(base_url=worker.url, timeout=20) as http,
        ):
            document = (await http.get("/openapi.json")).json()
            for path, method, operation in operations(document):
                assert "422" not in operation["responses"], path
                if path in FROM_METRICS_SERVER:
                    continue
                name = path.replace("{model_id}", "stub")
                worker.upstream.behave = embed if path == "/v1/embeddings" else say("hello")
                if method == "get":
                    answers = [await http.get(name)]
                elif method == "delete":
                    answers = [await http.delete(name)]
                else:
                    answers = [await http.post(name, json=body) for body in BODIES[path]]
                for answer in answers:
                    expected = 404 if "{id}" in path else 400 if path in PATHS else 200
                    assert answer.status_code == expected, answer.text
                    jsonschema.validate(answer.json(), schema_of(operation, answer))
                if method == "post" and "{id}" not in path:
                    wrong = await http.post(name, json={"no_such_field": 1})
                    assert wrong.status_code == 400
                    jsonschema.validate(wrong.json(), schema_of(operation, wrong))

    run(test)


def test_every_body_and_stream_is_described() -> None:
    async def test() -> None:
        async with http_worker() as worker, httpx2.AsyncClient(base_url=worker.url, timeout=20) as http:
            document = (await http.get("/openapi.json")).json()
            for path, method, operation in operations(document):
                if method == "post" and path not in PATHS and "{id}" not in path:
                    schema = operation["requestBody"]["content"]["application/json"]["schema"]
                    for body in BODIES[path]:
                        jsonschema.validate(body, schema)
                    streams = "text/event-stream" in operation["responses"]["200"]["content"]
                    assert streams == (
                        "stream" in schema["properties"] and "tokens" not in path and "render" not in path
                    ), path

    run(test)


def test_the_document_says_how_to_send_a_key_and_what_a_query_may_hold() -> None:
    async def test() -> None:
        async with http_worker(api_key="secret") as worker, httpx2.AsyncClient(base_url=worker.url) as http:
            document = (await http.get("/openapi.json", headers={"x-api-key": "secret"})).json()
            schemes = document["components"]["securitySchemes"]
            assert [[*one] for one in document["security"]] == [*([name] for name in schemes), []]
            items = document["paths"]["/v1/responses/{id}/input_items"]["get"]["parameters"]
            assert {one["name"] for one in items if one["in"] == "query"} == {"limit", "order", "after", "include"}

    run(test)


def test_a_method_that_a_path_does_not_take_is_405_with_those_that_it_takes() -> None:
    async def test() -> None:
        async with http_worker() as worker, httpx2.AsyncClient(base_url=worker.url) as http:
            document = (await http.get("/openapi.json")).json()
            for path, methods in document["paths"].items():
                name = path.replace("{model_id}", "stub")
                for method in {"get", "post", "delete"} - {*methods}:
                    if name in ("/v1/responses/input_tokens", "/v1/responses/compact"):
                        continue  # also the path of a stored response of that id
                    answer = await http.request(method, name)
                    allowed = {one.lower() for one in answer.headers["allow"].split(", ")}
                    assert (answer.status_code, allowed - {"head"}) == (405, {*methods}), (method, path)

    run(test)


def test_the_examples_are_answered_and_nothing_in_them_can_be_left_out() -> None:
    async def test() -> None:
        async with http_worker() as worker, httpx2.AsyncClient(base_url=worker.url, timeout=20) as http:
            document = (await http.get("/openapi.json")).json()
            for path, _, operation in operations(document):
                worker.upstream.behave = embed if path == "/v1/embeddings" else say("hello")
                content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
                for example in content.get("examples", {}).values():
                    body = example["value"]
                    jsonschema.validate(body, content["schema"])
                    assert (await http.post(path, json=body)).status_code == 200, path
                    for field in body.keys() - {"model"} - OPTIONAL.get(path, set()):
                        less = {name: value for name, value in body.items() if name != field}
                        refused = await http.post(path, json=less)
                        assert refused.status_code == 400, (path, field)
                        with pytest.raises(jsonschema.ValidationError):
                            jsonschema.validate(less, content["schema"])

    run(test)


def test_what_is_answered_of_a_stored_response_is_as_described() -> None:
    async def test() -> None:
        async with http_worker() as worker, httpx2.AsyncClient(base_url=worker.url, timeout=20) as http:
            document = (await http.get("/openapi.json")).json()
            described = {(path, method): operation for path, method, operation in operations(document)}
            body = {"model": "stub", "input": "hi", "background": True}
            made = await http.post("/v1/responses", json=body)
            jsonschema.validate(made.json(), schema_of(described["/v1/responses", "post"], made))
            for method, path, query in (
                ("get", "/v1/responses/{id}", {"include": "message.output_text.logprobs"}),
                ("post", "/v1/responses/{id}/cancel", {}),
                ("get", "/v1/responses/{id}/input_items", {"limit": 1, "order": "asc"}),
                ("delete", "/v1/responses/{id}", {}),
            ):
                operation = described[path, method]
                sent = {"json": {}} if method == "post" else {}
                answer = await http.request(method, path.format(id=made.json()["id"]), params=query, **sent)
                assert answer.status_code == 200, answer.text
                jsonschema.validate(answer.json(), schema_of(operation, answer))
                assert query.keys() <= {parameter["name"] for parameter in operation["parameters"]}
            await worker.idle()

    run(test)
