"""What of a client's text stands in an error message."""

from __future__ import annotations

import pytest

from mmserve.runtime.errors import MAX_MESSAGE_CHARS, MmserveError, quoted, shortened


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpt", "'gpt'"),
        ("x" * 60, repr("x" * 60)),
        ("x" * 61, repr("x" * 57 + "...")),
        ("\0" * 10**6, None),
        (10**4000, None),
        (["x" * 1000], None),
        (7, "7"),
    ],
    ids=lambda value: str(type(value).__name__),
)
def test_what_a_client_wrote_is_quoted_up_to_a_fixed_length(text: object, expected: str | None) -> None:
    assert len(quoted(text)) <= 62
    if expected is not None:
        assert quoted(text) == expected


def test_a_message_is_cut_however_it_was_made() -> None:
    error = MmserveError("x" * 10**6)
    assert len(error.message) == len(str(error)) == MAX_MESSAGE_CHARS
    assert error.message.endswith("x...")
    assert shortened("as it is") == "as it is"
