"""One browser and one server of each kind for all tests of the page."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.stack import Stack, running
from tests.e2e.web.chromium import ARGUMENTS, BROWSER

sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install 'mmserve[dev]'")
KEY = "secret"
Page = sync_api.Page
OpenPage = Callable[..., Page]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Parallel runs: on one worker, since these tests share a browser."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("web page"))


@pytest.fixture(scope="package")
def browser() -> Iterator[sync_api.Browser]:
    if BROWSER is None:
        pytest.skip("no Chromium on this machine: make browser")
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=BROWSER, args=list(ARGUMENTS))
        yield launched
        launched.close()


@pytest.fixture(scope="package")
def stack() -> Iterator[Stack]:
    """The whole server with the packaged model. Tests kill its engine, so no other tests share it."""
    with running("--enable-admin", "--allowed-media-domains", "127.0.0.1") as server:
        yield server


@pytest.fixture(scope="package")
def echo_url() -> Iterator[str]:
    """A worker that wants a key, and whose model repeats the question."""
    command = [sys.executable, "-m", "tests.e2e.web.echo_server", KEY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()


@pytest.fixture
def open_page(browser: sync_api.Browser) -> Iterator[OpenPage]:
    """Opens an address in a context of its own, with options of Playwright's contexts. At the end no page may have seen
    an error of a script or a violation of the content security policy."""
    contexts, problems = [], []

    def opened(url: str, key: str = "", **options: object) -> Page:
        context = browser.new_context(**{"reduced_motion": "reduce", **options})
        context.set_default_timeout(20_000)
        contexts.append(context)
        if key:
            context.add_init_script(f"sessionStorage.setItem('mmserve.key', '{key}')")
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on(
            "console", lambda message: problems.append(message.text) if "Content Security" in message.text else None
        )
        page.goto(url)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not problems
