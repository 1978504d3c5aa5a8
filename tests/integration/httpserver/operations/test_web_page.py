"""The web page's routes at a real worker: who gets what, with and without keys, and without the page."""

from __future__ import annotations

import asyncio

import httpx2

from tests.fakes.http.http_upstream import say
from tests.fakes.http.http_worker import Worker, http_worker, run
from tests.integration.httpserver.protocols.test_chat import HELLO

BROWSER = {"accept": "text/html,*/*"}
CHAT = "/v1/chat/completions"
ENGINE = {"queue": 1.0, "prefill": 2.0, "decode": 3.0}


def _http(worker: Worker, **headers: str) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=worker.url, headers=headers, timeout=20)


def test_browsers_get_the_page_and_programs_the_name() -> None:
    async def test() -> None:
        async with http_worker() as worker, _http(worker) as http:
            page = await http.get("/", headers=BROWSER)
            assert page.headers["content-type"].startswith("text/html")
            assert "script-src 'self'" in page.headers["content-security-policy"]
            assert (await http.get("/")).json() == {"name": "mmserve"}
            script = await http.get("/ui/chat.js")
            assert script.headers["content-type"].startswith("text/javascript")
            assert script.headers["cache-control"] == "no-cache"
            head = await http.head("/ui/chat.js")
            assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", script.headers["etag"])
            for path in ("/ui/", "/ui/other.js", "/ui/index.html", "/ui/..%2ffiles.py", "/ui/../files.py"):
                assert (await http.get(path)).status_code == 404
            assert (await http.post("/ui/chat.js", json={})).status_code == 405

    run(test)


def test_the_page_needs_no_key_and_what_it_asks_for_does() -> None:
    async def test() -> None:
        async with http_worker(api_key="secret") as worker, _http(worker) as http:
            assert (await http.get("/", headers=BROWSER)).status_code == 200
            assert (await http.get("/ui/chat.css")).status_code == 200
            for path in ("/server_info", "/ui/other.js", "/ui/chat.css/x"):
                assert (await http.get(path)).status_code == 401

    run(test)


def test_without_the_page_its_files_are_not_there() -> None:
    async def test() -> None:
        async with http_worker(web_ui=False) as worker, _http(worker) as http:
            assert (await http.get("/", headers=BROWSER)).json() == {"name": "mmserve"}
            assert (await http.get("/ui/chat.js")).status_code == 404

    run(test)


def test_the_dashboard_is_there_with_the_admin_option_and_sent_without_a_key() -> None:
    async def test() -> None:
        async with http_worker(enable_admin=True, api_key="secret") as worker, _http(worker) as http:
            page = await http.get("/dashboard")
            assert page.headers["content-type"].startswith("text/html")
            assert "script-src 'self'" in page.headers["content-security-policy"]
            assert (await http.get("/ui/dashboard.js")).status_code == 200
        for config in ({"enable_admin": False}, {"enable_admin": True, "web_ui": False}):
            async with http_worker(**config) as worker, _http(worker) as http:
                assert (await http.get("/dashboard")).status_code == 404

    run(test)


def test_a_name_that_a_site_rebinds_gets_no_script() -> None:
    async def test() -> None:
        async with http_worker() as worker, _http(worker, host="evil.example") as http:
            assert (await http.get("/ui/chat.js")).status_code == 403

    run(test)


def test_a_stream_says_where_its_time_went_if_it_is_asked() -> None:
    async def test() -> None:
        async with http_worker() as worker, worker.client() as client:

            async def behave(upstream: object, request: object) -> None:
                worker.upstream.reply(request, b"a")  # type: ignore[arg-type]
                await asyncio.sleep(0.02)
                worker.upstream.reply(request, b"b", finish="stop", stage_times=ENGINE)  # type: ignore[arg-type]

            worker.upstream.behave = behave  # type: ignore[assignment]
            for usage in (False, True):
                options = {"include_timing": True, "include_usage": usage}
                stream = await client.chat.completions.create(
                    model="stub",
                    messages=HELLO,
                    stream=True,
                    stream_options=options,  # type: ignore[call-overload]
                )
                *_, last = [chunk.model_dump() async for chunk in stream]
                assert last["choices"] == []
                assert (last["usage"] is not None) == usage
                timing = last["timing"]
                assert {stage: timing["stages_ms"][stage] for stage in ENGINE} == {
                    stage: 1e3 * seconds for stage, seconds in ENGINE.items()
                }
                assert {"body", "prompt"} <= timing["stages_ms"].keys()
                assert 0 < timing["ttft_ms"] < timing["total_ms"]
            plain = await client.chat.completions.create(model="stub", messages=HELLO, stream=True)  # type: ignore[call-overload]
            assert all("timing" not in chunk.model_dump() for chunk in [each async for each in plain])

    run(test)


def test_timing_without_a_stream_is_refused_by_name() -> None:
    async def test() -> None:
        async with http_worker() as worker, _http(worker) as http:
            worker.upstream.behave = say("fine")
            body = {"model": "stub", "messages": HELLO, "stream_options": {"include_timing": True}}
            refused = await http.post(CHAT, json=body)
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == "stream_options.include_timing"
            body = {"model": "stub", "prompt": "a", "stream": True, "stream_options": {"include_timing": True}}
            refused = await http.post("/v1/completions", json=body)
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == "stream_options.include_timing"

    run(test)
