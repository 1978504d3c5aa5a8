"""Input files of batches."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from mmserve.batch.lines import BatchLine
from mmserve.batch.source import BadLine, check, digest_of, read_lines


def _line(name: str, url: str = "/v1/chat/completions") -> bytes:
    return json.dumps({"custom_id": name, "method": "POST", "url": url, "body": {}}).encode()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n".join([_line("a"), b"", b"{", _line("b", "/v1/embeddings"), _line("a")]))
    return path


def test_blank_lines_are_skipped_and_bad_ones_are_alone(path: Path) -> None:
    lines = list(read_lines(path))
    assert [line.number for line in lines] == [1, 3, 4, 5]
    assert [line.custom_id for line in lines if isinstance(line, BatchLine)] == ["a", "b"]
    assert [line.error.code for line in lines if isinstance(line, BadLine)] == [
        "invalid_json_line",
        "duplicate_custom_id",
    ]


def test_a_check_counts_and_names(path: Path) -> None:
    checked = check(path)
    assert checked.total == 4
    assert [bad.number for bad in checked.bad] == [3, 5]
    assert [bad.number for bad in check(path, "/v1/chat/completions").bad] == [3, 4, 5]
    assert checked.nbytes == path.stat().st_size
    assert checked.digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert len(check(path, max_bad=1).bad) == 1


def test_a_digest_is_of_the_beginning(path: Path) -> None:
    assert digest_of(path, 5) == hashlib.sha256(path.read_bytes()[:5]).hexdigest()
