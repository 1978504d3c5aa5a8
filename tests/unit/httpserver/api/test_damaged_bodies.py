"""A sample of the mutated bodies of ``make fuzz``."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fuzz import bodies


def test_mutated_bodies_become_prompts_or_are_refused() -> None:
    outcomes = bodies.check(300)
    assert outcomes["became a prompt"] > 30
    assert outcomes["refused with 400"] > 100


def test_an_error_of_another_kind_is_reported_with_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> None:
        raise ValueError("x")

    monkeypatch.setattr(bodies, "parse_request", broken)
    with pytest.raises(AssertionError, match=r"body 0: ValueError: x"):
        bodies.check(1)
