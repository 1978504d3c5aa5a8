"""The input file of a batch: read once to be checked, and again, a little at a time, to be sent. Blocking."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mmserve.batch.lines import BatchLine, LineError, parse_line

READ_NBYTES = 1 << 20
"""Read at a time, and kept until it is sent."""


@dataclass(frozen=True)
class BadLine:
    number: int
    error: LineError


@dataclass(frozen=True)
class Checked:
    """``total``: lines that are not blank. ``digest``: of the first ``nbytes`` of the file, which are all of it."""

    total: int
    bad: list[BadLine]
    nbytes: int
    digest: str


def read_lines(path: Path, endpoint: str | None = None) -> Iterator[BatchLine | BadLine]:
    """Every line that is not blank, in order. Bad is also a second line with the same custom_id, and one for another
    endpoint than ``endpoint``. Raises OSError."""
    seen: set[bytes] = set()
    with open(path, "rb", buffering=READ_NBYTES) as file:
        for number, text in enumerate(file, start=1):
            if not text.strip():
                continue
            try:
                line = parse_line(number, text)
                if endpoint not in (None, line.url):
                    raise LineError("mismatched_endpoint", f"url is not the batch's endpoint, {endpoint}", "url")
            except LineError as error:
                yield BadLine(number, error)
                continue
            # A digest takes less memory than a long name.
            if (name := hashlib.blake2b(line.custom_id.encode(), digest_size=16).digest()) in seen:
                message = f"custom_id {line.custom_id[:60]!r} has a line before this one"
                yield BadLine(number, LineError("duplicate_custom_id", message, "custom_id"))
            else:
                seen.add(name)
                yield line


def check(path: Path, endpoint: str | None = None, max_bad: int | None = None) -> Checked:
    """Read the whole file, or until there are ``max_bad`` bad lines. Raises OSError."""
    total, bad = 0, list[BadLine]()
    for line in read_lines(path, endpoint):
        total += 1
        if isinstance(line, BadLine):
            bad.append(line)
            if len(bad) == max_bad:
                break
    nbytes = path.stat().st_size
    return Checked(total, bad, nbytes, digest_of(path, nbytes))


def digest_of(path: Path, nbytes: int) -> str:
    """SHA-256 of the first ``nbytes``. Raises OSError."""
    digest, left = hashlib.sha256(), nbytes
    with open(path, "rb") as file:
        while left and (block := file.read(min(READ_NBYTES, left))):
            digest.update(block)
            left -= len(block)
    return digest.hexdigest()
