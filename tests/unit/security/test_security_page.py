"""docs/security.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[2]
PAGE = TESTS.parent / "docs" / "security.md"


def test_every_test_on_the_page_exists() -> None:
    named = re.findall(r"`((?:unit|integration|e2e)/[\w/]+\.py)(?:::(\w+))?`", PAGE.read_text())
    assert len(named) > 20
    for file, function in named:
        path = TESTS / file
        assert path.is_file(), f"docs/security.md names {file}, which is gone"
        assert f"def {function}" in path.read_text(), f"docs/security.md names {function}, which is not in {file}"
