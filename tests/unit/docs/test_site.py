"""The site has every page once."""

from __future__ import annotations

from typing import Any

import yaml

from tests.fakes.processes.code_blocks import PAGES, ROOT


def _pages(nav: list[Any]) -> list[str]:
    return [
        page
        for entry in nav
        for value in entry.values()
        for page in (_pages(value) if isinstance(value, list) else [value])
    ]


def test_every_page_is_in_the_navigation_once() -> None:
    pages = _pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert len(set(pages)) == len(pages)
    assert {str(page.relative_to(ROOT)) for page in PAGES} <= set(pages)
    assert all((ROOT / page).exists() for page in pages)
