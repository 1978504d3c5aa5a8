"""Multipart bodies, in parts of any size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmserve.httpserver.api.openai.batches.multipart import (
    MAX_HEAD_NBYTES,
    MAX_PARTS,
    MultipartReader,
    PartData,
    PartEnd,
    PartStart,
)
from mmserve.runtime.errors import InvalidRequest

TYPE = 'multipart/form-data; boundary="b-1"'


def _part(disposition: str, content: bytes) -> bytes:
    return b"--b-1\r\nContent-Disposition: form-data; " + disposition.encode() + b"\r\n\r\n" + content + b"\r\n"


def _read(body: bytes, step: int = 1 << 20, type_: str = TYPE) -> list[tuple[str, str | None, bytes]]:
    """Name, file name and content of each part."""
    reader, parts, ends = MultipartReader(type_), [], 0
    for start in range(0, len(body), step):
        for event in reader.feed(body[start : start + step]):
            match event:
                case PartStart(name=name, filename=filename):
                    parts.append((name, filename, b""))
                case PartData(data=data):
                    parts[-1] = (*parts[-1][:2], parts[-1][2] + data)
                case PartEnd():
                    ends += 1
    reader.end()
    assert ends == len(parts)
    return parts


BODY = (
    b"preamble\r\n"
    + _part('name="purpose"', b"batch")
    + _part('name="file"; filename="a \\"b\\".jsonl"', b"line\r\n--b-\r\nline\r\n")
    + _part("name=empty", b"")
    + b"--b-1--\r\nepilogue"
)


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
def test_parts_are_found_wherever_the_body_is_cut(step: int) -> None:
    assert _read(BODY, step) == [
        ("purpose", None, b"batch"),
        ("file", 'a \\"b\\".jsonl', b"line\r\n--b-\r\nline\r\n"),
        ("empty", None, b""),
    ]


@given(st.binary().filter(lambda content: b"\r\n--b-1" not in content), st.integers(1, 50))
def test_any_content_stays_as_it_is(content: bytes, step: int) -> None:
    assert _read(_part('name="file"; filename="x"', content) + b"--b-1--", step) == [("file", "x", content)]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "too early"),
        (BODY[:-20], "too early"),
        (b"--b-1x\r\n", "malformed"),
        (b"--b-1\r\nContent-Type: text/plain\r\n\r\nx\r\n--b-1--", "no name"),
        (b"--b-1\r\nX: " + b"a" * MAX_HEAD_NBYTES + b"\r\n\r\n", "longer than"),
        (b"--b-1\r\nX: " + b"a" * (2 * MAX_HEAD_NBYTES), "longer than"),
        (_part("name=a", b"") * (MAX_PARTS + 1), "more than"),
    ],
)
def test_what_is_no_such_body_is_refused(body: bytes, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        _read(body)


@pytest.mark.parametrize("type_", ["application/json", "multipart/form-data", "multipart/mixed; boundary=b", ""])
def test_another_type_is_refused(type_: str) -> None:
    with pytest.raises(InvalidRequest, match="multipart/form-data"):
        MultipartReader(type_)
