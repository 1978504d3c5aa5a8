"""A sample of the damaged pictures of ``make fuzz``."""

from __future__ import annotations

from typing import Any

import pytest

from mmserve.processors.families.llava import LlavaProcessor
from mmserve.processors.image_files.picture import FORMATS
from tests.fuzz import pictures


@pytest.mark.parametrize("format", FORMATS)
def test_damaged_pictures_are_refused_or_decoded_in_the_memory_announced(format: str) -> None:
    outcomes = pictures.check(format, 60)
    assert len(outcomes) == 3, "some are refused by the header, some by the decoder, some are decoded"


def test_an_error_of_another_kind_is_reported_with_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> None:
        raise ValueError("x")

    monkeypatch.setattr(LlavaProcessor, "views", broken)
    with pytest.raises(AssertionError, match=r"BMP \d+: ValueError: x"):
        pictures.check("BMP", 60)


def test_memory_that_was_not_announced_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LlavaProcessor, "decoded_nbytes", lambda *args: -(64 << 20))
    with pytest.raises(AssertionError, match="were announced"):
        pictures.check("BMP", 60)
