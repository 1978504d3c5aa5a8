"""The dashboard in Chromium: in front of the whole server, and with states that a test makes."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from playwright.sync_api import Page, Route, expect

from mmserve.httpserver.api.admin.state import AdminState
from mmserve.messages.server_state import ProcessState, RequestState
from tests.e2e.stack import Stack, ask
from tests.e2e.web.conftest import KEY, OpenPage
from tests.e2e.web.dashboard_state import as_event, busy_state
from tests.e2e.web.test_looks import AXE, LOOKS, serious_findings
from training.sample import samples

EVENTS = "**/admin/state/events*"
PAUSE_MS = 10_000
"""Longer than the page waits before it asks again, and than figures count as new."""
FRACTION = "concurrent_alloc_fraction"
Answer = Callable[[Route], None]


def sends(make: Callable[[], AdminState]) -> Answer:
    """Answers with one event, after which the page asks again."""
    return lambda route: route.fulfill(content_type="text/event-stream", body=as_event(make()))


def open_dashboard(open_page: OpenPage, url: str, answer: Answer, **options: object) -> Page:
    """The dashboard, whose states and clock the test decides. Its page and all other answers are the worker's."""

    def answered_with_key(route: Route) -> None:
        if route.request.headers.get("authorization") == f"Bearer {KEY}":
            answer(route)
        else:
            route.continue_()

    page = open_page(f"{url}/ui/icon.svg", **options)
    page.route(EVENTS, answered_with_key)
    page.clock.install()
    page.goto(f"{url}/dashboard")
    return page


def _row(page: Page, table: str, name: str) -> str:
    row = (
        page.get_by_role("region", name=table)
        .get_by_role("row")
        .filter(has=page.get_by_role("rowheader", name=name, exact=True))
    )
    return row.inner_text()


def test_what_the_server_does_is_seen_as_it_happens_and_the_switch_is_moved(stack: Stack, open_page: OpenPage) -> None:
    page = open_page(f"{stack.url}/dashboard")
    expect(page.get_by_role("banner").get_by_role("status")).to_have_text("ready")
    for process in ("supervisor", "router", "cache_server", "model_backend rank 0", "httpserver 0"):
        expect(page.get_by_role("rowheader", name=process, exact=True)).to_be_visible()
    paths = page.get_by_role("region", name="Both paths")
    requests = paths.get_by_role("row").filter(has_text="requests").get_by_role("cell")
    before = int(requests.nth(1).inner_text())
    (sample,) = samples(1, seed=29)
    ask(stack.client(), sample.messages)
    expect(requests.nth(1)).to_have_text(str(before + 1))
    assert _row(page, "Extents by state", "embedding").split()[1] != "0"

    with stack.client().chat.completions.create(
        model="llava",
        messages=[{"role": "user", "content": "private words"}],
        stream=True,
        extra_body={"min_tokens": 2000},
    ) as stream:
        request_id = next(stream).id.removeprefix("chatcmpl-")
        row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name=request_id, exact=True))
        expect(row).to_contain_text("decoding")
        card = page.get_by_role("region", name="Requests in flight")
        expect(card).not_to_contain_text("private")
    expect(card).to_contain_text("None now.")

    page.get_by_role("group", name="Share of v2").get_by_role("button", name="25 %").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("It is 100 % now")
    dialog.get_by_role("button", name="Use v2 for 25 %").click()
    expect(dialog).to_have_count(0)
    expect(page.get_by_text("v2: 25 % of requests")).to_be_visible()
    with urllib.request.urlopen(f"{stack.url}/admin/alloc", timeout=20) as answer:
        assert json.loads(answer.read()) == {FRACTION: 0.25}
    assert stack.post("/admin/alloc", {FRACTION: 1.0})[0] == 200
    expect(page.get_by_text("v2: 100 % of requests")).to_be_visible()


def test_a_key_is_asked_for_until_it_is_right(echo_url: str, open_page: OpenPage) -> None:
    page = open_dashboard(open_page, echo_url, sends(busy_state))
    dialog = page.get_by_role("dialog", name="API key")
    dialog.get_by_label("Key", exact=True).fill("wrong")
    page.keyboard.press("Enter")
    expect(dialog.get_by_role("alert")).to_have_text("missing or wrong API key")
    expect(page.get_by_role("heading", name="Processes")).to_have_count(0)
    dialog.get_by_label("Key", exact=True).fill(KEY)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Processes")).to_be_visible()


def test_old_figures_are_shown_as_old_until_the_server_answers_again(echo_url: str, open_page: OpenPage) -> None:
    answers: list[Answer] = [sends(busy_state)]
    page = open_dashboard(open_page, echo_url, lambda route: answers[-1](route), key=KEY)
    status = page.get_by_role("banner").get_by_role("status")
    expect(status).to_have_text("ready")
    answers.append(lambda route: route.abort())
    page.clock.fast_forward(PAUSE_MS)
    expect(status).to_have_text("connection lost")
    expect(page.get_by_role("alert").filter(has_text="The figures below are old")).to_be_visible()
    expect(page.get_by_role("heading", name="Processes")).to_be_visible()
    answers.append(sends(lambda: busy_state(phase="restarting")))
    page.clock.fast_forward(PAUSE_MS)
    expect(status).to_have_text("restarting", timeout=20_000)
    expect(page.get_by_role("alert").filter(has_text="phase is restarting")).to_be_visible()


def test_names_and_errors_do_nothing(echo_url: str, open_page: OpenPage) -> None:
    worst = "<img src=x onerror=hacked=1><script>hacked=1</script><svg onload=hacked=1>"

    def attacked() -> AdminState:
        state = busy_state(model=worst, phase=worst)
        process: ProcessState = msgspec.structs.replace(state.processes[0], title=worst, name=worst, state=worst)
        request: RequestState = msgspec.structs.replace(state.requests[0], id=worst, state=worst)
        changed = {"missing": (worst,), "processes": (process,), "requests": (request,)}
        return msgspec.structs.replace(state, version=worst, detail=worst, **changed)

    answers: list[Answer] = [sends(attacked)]
    page = open_dashboard(open_page, echo_url, lambda route: answers[-1](route), key=KEY)
    for region in ("Each process", "Each request"):
        expect(page.get_by_role("region", name=region).get_by_role("rowheader", name=worst)).to_be_visible()
    expect(page.get_by_role("alert").filter(has_text=worst)).to_be_visible()
    page.route("**/admin/alloc", lambda route: route.fulfill(status=400, json={"error": {"message": worst}}))
    page.get_by_role("group", name="Share of v2").get_by_role("button", name="5 %", exact=True).click()
    page.get_by_role("button", name="Use v2 for 5 %").click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_have_text(worst)
    page.keyboard.press("Escape")
    answers.append(lambda route: route.fulfill(status=500, json={"error": {"message": f"again {worst}"}}))
    page.clock.fast_forward(PAUSE_MS)
    expect(page.get_by_role("alert").filter(has_text=f"again {worst}")).to_be_visible(timeout=20_000)
    assert page.evaluate("typeof hacked") == "undefined"
    assert page.locator("script:not([src]), main img, [onerror], [onload]").count() == 0


def test_a_server_without_the_option_says_so(echo_url: str, open_page: OpenPage) -> None:
    page = open_dashboard(
        open_page, echo_url, lambda route: route.fulfill(status=404, json={"error": {"message": "no"}}), key=KEY
    )
    expect(page.get_by_role("alert").filter(has_text="--enable-admin")).to_be_visible()


@pytest.mark.parametrize("look", LOOKS)
def test_the_dashboard_is_accessible_and_fits(echo_url: str, open_page: OpenPage, look: str, tmp_path: Path) -> None:
    """Makes pictures of the page, in the folder of TEST_SCREENSHOTS if it is set."""
    folder = Path(os.environ.get("TEST_SCREENSHOTS") or tmp_path)
    page = open_dashboard(open_page, echo_url, sends(busy_state), key=KEY, **LOOKS[look])
    findings: dict[str, list[str]] = {}

    def check(state: str) -> None:
        page.screenshot(path=folder / f"dashboard-{look}-{state}.png", full_page=state == "whole")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), state
        if AXE.exists():
            findings[state] = serious_findings(page)

    expect(page.get_by_role("heading", name="Processes")).to_be_visible()
    page.get_by_role("button", name="1 h").click()
    expect(page.get_by_role("img", name="Time to first token")).to_be_visible()
    check("whole")
    page.get_by_role("group", name="Share of v2").get_by_role("button", name="100 %").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    check("confirm")
    assert not any(findings.values()), findings
    if not AXE.exists():
        pytest.skip("no axe-core: cd web && npm ci")
