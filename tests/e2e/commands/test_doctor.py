"""``mmserve doctor --url`` with the whole server."""

from __future__ import annotations

import json

import pytest

from mmserve.cli import main as cli
from tests.e2e.stack import Stack


def test_a_running_server_is_healthy(default_stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--url", default_stack.url, "--strict"]) == 0
    printed = capsys.readouterr().out
    assert "'red'" in printed
    assert "sequences and leases are released" in printed


def test_json_has_a_row_for_each_check(default_stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--url", default_stack.url, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == ["server", "text", "picture", "key", "leftovers"]
    assert all({"status", "found", "do", "seconds"} <= row.keys() for row in rows)
