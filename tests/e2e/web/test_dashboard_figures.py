"""Each figure of a state stands on the dashboard, and the drawing of the arena follows the states."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.web.conftest import KEY, OpenPage
from tests.e2e.web.dashboard_state import busy_state
from tests.e2e.web.test_dashboard import PAUSE_MS, Answer, open_dashboard, sends

TIME_S = 1_800_000_002.0
TILES = (
    ("402 k in the last hour", "22 % found in the prefix cache", "213 ms", "p95 511 ms, 3,120 requests", "21 ms"),
    ("11 of 16", "2 waiting, 15 in flight", "33 % held", "23 % cached of 1,024, 7 preempted", "2 being read"),
)
ROWS = {
    "Each process": {
        "visualserver 0": ("ready", "4106", "1 d 2 h", "1", "600 ms", "44 MB", "63 MB"),
        "model_backend rank 0": ("busy", "4104", "1 d 2 h", "0", "400 ms", "220 MB", "315 MB"),
    },
    "Stages of images and sequences": {
        "image: decode": ("4,956", "7 ms", "17 ms"),
        "image: vision tower, one batch": ("1,320", "93 ms", "223 ms"),
        "wait for a slot": ("3,120", "18 ms", "43 ms"),
    },
    "Extents by state": {"embedding": ("169", "44", "287 MB", "54 %"), "hole": ("72", "", "144 MB", "27 %")},
    "Both paths": {
        "images": ("1,236 (33 % cached)", "3,720 (33 % cached)", ""),
        "alloc p50 / p95": ("4 ms / 10 ms", "2 ms / 4 ms", "−62 %"),
    },
    "Each request": {"ffffffff0888": ("encoding", "900 ms", "950", "0", "2")},
}
CHARTS = (
    "Tokens a second. Latest: written 56, prompt 250.",
    "Time to first token. Latest: p50 205 ms, p95 431 ms, p99 595 ms.",
    "Time between tokens. Latest: p50 17 ms, p95 29 ms, p99 44 ms.",
)


@pytest.fixture
def answers() -> list[Answer]:
    """The last one is given."""
    return [sends(lambda: busy_state(TIME_S))]


@pytest.fixture
def dashboard(echo_url: str, open_page: OpenPage, answers: list[Answer]) -> Page:
    look = {"viewport": {"width": 1280, "height": 820}, "reduced_motion": "no-preference"}
    return open_dashboard(open_page, echo_url, lambda route: answers[-1](route), key=KEY, **look)


def test_every_figure_is_shown(dashboard: Page) -> None:
    tiles = dashboard.get_by_role("region", name="Now", exact=True)
    for text in (text for part in TILES for text in part):
        expect(tiles).to_contain_text(text)
    for table, rows in ROWS.items():
        for name, cells in rows.items():
            header = dashboard.get_by_role("rowheader", name=name, exact=True)
            row = dashboard.get_by_role("region", name=table).get_by_role("row").filter(has=header)
            expect(row.get_by_role("cell")).to_have_text(list(cells))
    for label in CHARTS:
        expect(dashboard.get_by_role("img", name=label, exact=True)).to_be_visible()


def test_the_drawing_of_the_arena_follows_the_server(dashboard: Page, answers: list[Answer]) -> None:
    drawing = dashboard.get_by_role("img", name="Drawing of the arena")
    drawing.hover(position={"x": 1, "y": 3})
    expect(dashboard.locator(".pointed")).to_have_text("image, 1.0 MB at 0 B, 1 lease")
    before = drawing.evaluate("canvas => canvas.toDataURL()")
    answers.append(sends(lambda: busy_state(TIME_S + 1)))
    dashboard.clock.run_for(PAUSE_MS)
    expect(dashboard.get_by_role("region", name="Now", exact=True)).to_contain_text("12 of 16")
    dashboard.clock.run_for(1000)  # the old picture fades
    assert drawing.evaluate("canvas => canvas.toDataURL()") != before
