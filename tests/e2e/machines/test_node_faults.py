"""Three servers in namespaces behind two fronts: no request fails and no text changes, whatever happens to one."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.nodes import faults
from benchmarks.nodes.namespaces import why_not


@pytest.mark.nodes
def test_no_request_fails_and_no_text_changes(tmp_path: Path) -> None:
    """Clients of a front that is killed ask the other one; nobody else sees an error."""
    if reason := why_not():
        pytest.skip(reason)
    rows = {row["event"]: row for row in faults.rows(tmp_path, [*faults.EVENTS])}
    assert len(rows) == len(faults.EVENTS)
    for event, row in rows.items():
        assert (row["failed"], row["changed"]) == (0, 0), event
        assert row["of clients of the other front"] == 0, event
    retried = {event for event, row in rows.items() if row["errors that clients retried"]}
    assert retried == {faults.TITLES["front"]}
    moved = [rows[faults.TITLES[event]]["streams moved"] for event in ("node", "partition")]
    assert sum(moved) > 0
