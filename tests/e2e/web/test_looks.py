"""Pictures of the page in each of its looks, and what axe-core finds there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.stack import Stack
from tests.e2e.web.chat import PICTURE, answers, ask, give
from tests.e2e.web.conftest import OpenPage

AXE = Path(__file__).parents[3] / "web" / "node_modules" / "axe-core" / "axe.min.js"
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1280, "height": 820}},
    "dark": {"viewport": {"width": 1280, "height": 820}, "color_scheme": "dark"},
    "phone": {
        "viewport": {"width": 390, "height": 844},
        "device_scale_factor": 2,
        "is_mobile": True,
        "has_touch": True,
    },
}
CIRCLE = "What colour is the circle?"


def serious_findings(page: Page) -> list[str]:
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run()")["violations"]
    return [
        f"{one['id']}: {[node['target'] for node in one['nodes']]}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("look", LOOKS)
def test_the_page_is_accessible_and_fits(stack: Stack, open_page: OpenPage, look: str, tmp_path: Path) -> None:
    """Makes pictures of the page, in the folder of TEST_SCREENSHOTS if it is set."""
    folder = Path(os.environ.get("TEST_SCREENSHOTS") or tmp_path)
    page = open_page(stack.url, **LOOKS[look])
    findings: dict[str, list[str]] = {}

    def check(state: str) -> None:
        page.screenshot(path=folder / f"{look}-{state}.png")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), state
        if AXE.exists():
            findings[state] = serious_findings(page)

    expect(page.get_by_text("Answers come from")).to_be_visible()
    check("empty")
    give(page, "drop", picture_png=PICTURE, fake_png=b"no picture")
    expect(page.get_by_text("64 tokens", exact=True)).to_be_visible()
    expect(page.locator(".picture.refused")).to_be_visible()
    check("attached")
    page.get_by_role("button", name="Remove fake.png").click()
    ask(page, CIRCLE)
    expect(answers(page).locator(".markdown")).to_have_text("green")
    page.locator("details.stages summary").click()
    check("answer")
    page.get_by_role("button", name="Settings").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    check("settings")
    page.get_by_label("Temperature").fill("9")
    page.keyboard.press("Escape")
    ask(page, "And now?")
    expect(page.locator(".ending.failed")).to_be_visible()
    check("error")
    assert not any(findings.values()), findings
    if not AXE.exists():
        pytest.skip("no axe-core: cd web && npm ci")
