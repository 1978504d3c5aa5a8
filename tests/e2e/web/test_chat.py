"""The page in Chromium, in front of the whole server with the packaged model."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Route, expect

from tests.e2e.stack import Stack
from tests.e2e.web.chat import PICTURE, answers, ask, give, new_chat, paste
from tests.e2e.web.chromium import MAY_PASTE
from tests.e2e.web.conftest import OpenPage

CIRCLE = "What colour is the circle?"


def test_a_pasted_picture_is_answered_and_a_reload_keeps_everything(stack: Stack, open_page: OpenPage) -> None:
    page = open_page(stack.url, permissions=MAY_PASTE)
    expect(page.get_by_text("Answers come from")).to_be_visible()
    paste(page, PICTURE)
    expect(page.get_by_text("64 tokens", exact=True)).to_be_visible()
    ask(page, CIRCLE)
    expect(answers(page).locator(".markdown")).to_have_text("green")
    figures = page.get_by_role("list", name="Figures")
    expect(figures).to_contain_text("TTFT")
    expect(figures).to_contain_text("tokens/s")
    expect(figures).to_contain_text("cached")
    page.locator("details.stages summary").click()
    stages = page.locator("details.stages tbody th").all_inner_texts()
    assert stages[0] == "read"
    assert stages[-2:] == ["prefill", "decode"]
    assert {"hash", "alloc", "encode"} <= set(stages)

    page.get_by_label("Message").fill("half a question")
    page.reload()
    page.get_by_role("button", name=CIRCLE, exact=True).click()
    expect(answers(page).locator(".markdown")).to_have_text("green")
    page.get_by_label("image.png, 126 × 121").click()
    shown = page.get_by_role("dialog").get_by_role("img")
    expect(shown).to_be_visible()
    assert shown.evaluate("image => image.naturalWidth") == 126
    page.keyboard.press("Escape")
    expect(page.get_by_label("Message")).to_have_value("half a question")


def test_pictures_are_dropped_and_chosen_and_one_that_is_none_is_refused_before_sending(
    stack: Stack, open_page: OpenPage
) -> None:
    page = open_page(stack.url)
    give(page, "drop", first_png=PICTURE, fake_png=b"no picture")
    page.get_by_label("Pictures", exact=True).and_(page.locator("input")).set_input_files(
        {"name": "second.png", "mimeType": "image/png", "buffer": PICTURE}
    )
    expect(page.get_by_role("listitem").filter(has_text="64 tokens")).to_have_count(2)
    refused = page.get_by_role("listitem").filter(has_text="fake.png")
    expect(refused).to_contain_text("image")
    page.get_by_label("Message").fill(CIRCLE)
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert").filter(has_text="Remove fake.png first")).to_be_visible()
    expect(answers(page)).to_have_count(0)
    page.get_by_role("button", name="Remove fake.png").click()
    expect(page.get_by_text("128 tokens in 2 pictures")).to_be_visible()
    ask(page, CIRCLE)
    expect(answers(page).locator(".markdown")).not_to_be_empty()


@pytest.fixture
def picture_url() -> Iterator[str]:
    """Of a web server of the test's own."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(PICTURE)

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as site:
        threading.Thread(target=site.serve_forever).start()
        yield f"http://127.0.0.1:{site.server_port}/shapes.png"
        site.shutdown()


def test_a_picture_is_named_by_its_url_which_the_server_fetches(
    stack: Stack, open_page: OpenPage, picture_url: str
) -> None:
    page = open_page(stack.url)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for url in (picture_url.replace("127.0.0.1", "localhost"), picture_url):
        page.get_by_role("button", name="Add a picture by its URL").click()
        page.get_by_label("URL of a picture").fill(url)
        page.keyboard.press("Enter")
        expect(page.get_by_label("Message")).to_be_focused()
    refused = page.locator(".picture.refused")
    expect(refused).to_contain_text("that host")
    expect(page.get_by_text("64 tokens", exact=True)).to_be_visible()
    refused.get_by_role("button", name="Remove shapes.png").click()
    ask(page, CIRCLE)
    expect(answers(page).locator(".markdown")).to_have_text("green")
    expect(page.locator(".question").get_by_label("shapes.png, 126 × 121")).to_be_visible()
    assert not [url for url in asked if url.endswith("shapes.png")]


def test_a_question_waits_until_the_page_knows_the_servers_model(stack: Stack, open_page: OpenPage) -> None:
    page = open_page("about:blank")
    held: list[Route] = []
    page.route("**/server_info", lambda route: held.append(route))
    page.goto(stack.url)
    ask(page, "What can you do?")
    expect(page.locator(".answer.live")).to_have_count(1)
    while held:
        held.pop().continue_()
        page.wait_for_timeout(100)
    expect(answers(page).locator(".markdown")).not_to_be_empty()
    assert page.locator(".ending.failed").all_inner_texts() == []


def _made_long(route: Route) -> None:
    """The packaged model is short: its answers go on to the limit."""
    body = json.loads(route.request.post_data or "")
    route.continue_(post_data=json.dumps(body | {"ignore_eos": True, "max_completion_tokens": 1200, "temperature": 0}))


def test_an_answer_goes_on_when_the_engine_is_killed(stack: Stack, open_page: OpenPage) -> None:
    page = open_page(stack.url)
    page.route("**/v1/chat/completions", _made_long)
    ask(page, "What can you do?")
    expect(answers(page)).to_have_count(1, timeout=60_000)
    assert page.locator(".ending.failed").all_inner_texts() == []
    expect(answers(page).locator(".markdown")).to_have_text(re.compile(".{200}", re.DOTALL))
    undisturbed = answers(page).locator(".markdown").inner_text()

    new_chat(page)
    ask(page, "What can you do?")
    expect(page.locator(".answer.live .markdown")).not_to_be_empty()
    (engine,) = stack.processes("mmserve: model_backend")
    engine.kill()
    expect(page.locator(".answer.live")).to_have_count(1)  # it was killed in the middle
    expect(answers(page)).to_have_count(1, timeout=60_000)
    assert answers(page).locator(".markdown").inner_text() == undisturbed
    assert page.locator(".ending.failed").all_inner_texts() == []
    assert stack.metric("process_restarts_total") >= 1


def test_settings_are_sent_and_a_wrong_one_is_named_by_the_server(stack: Stack, open_page: OpenPage) -> None:
    page = open_page(stack.url)
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Temperature").fill("7")
    page.keyboard.press("Escape")
    ask(page, CIRCLE)
    expect(page.locator(".ending.failed")).to_contain_text("temperature")
    expect(page.locator(".ending.failed")).to_contain_text("400")
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("JSON schema").fill('{"enum": ["red", ')
    expect(page.get_by_text("JSON schema: ")).to_be_visible()
    page.get_by_label("JSON schema").fill('{"enum": ["purple"]}')
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Ask again").click()
    expect(answers(page).locator(".markdown")).to_have_text('"purple"')
