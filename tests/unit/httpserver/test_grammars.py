"""The worker's checks of grammars: results are remembered, waiting is bounded, the grammar decides where text ends."""

from __future__ import annotations

import asyncio
import threading

import pytest

from mmserve.httpserver import grammars
from mmserve.httpserver.grammars import GrammarChecks, constrained
from mmserve.messages.sampling import SamplingParams
from mmserve.runtime.errors import InvalidRequest, Overloaded


class FakeValidator:
    """Refuses grammars that contain "bad"; waits before each until ``go_on`` is set."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.go_on = threading.Event()
        self.go_on.set()

    def error_of(self, grammar: str) -> str:
        assert self.go_on.wait(10)
        self.seen.append(grammar)
        return "no" if "bad" in grammar else ""

    def close(self) -> None:
        self.go_on.set()


def test_each_grammar_is_validated_once() -> None:
    validator = FakeValidator()

    async def scenario() -> None:
        checks = GrammarChecks([validator])
        await asyncio.gather(*(checks.check("good", "field") for _ in range(5)))
        for _ in range(2):
            with pytest.raises(InvalidRequest, match="field cannot be used: no") as refused:
                await checks.check("bad", "field")
            assert refused.value.param == "field"
        checks.close()

    asyncio.run(scenario())
    assert validator.seen == ["good", "bad"]


def test_a_known_grammar_does_not_wait_for_a_slow_one_and_waiting_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars, "_QUEUE_TIMEOUT_S", 0.01)
    validator = FakeValidator()

    async def scenario() -> None:
        checks = GrammarChecks([validator])
        await checks.check("known", "field")
        validator.go_on.clear()
        slow = asyncio.create_task(checks.check("slow", "field"))
        await asyncio.sleep(0)
        await checks.check("known", "field")
        with pytest.raises(Overloaded):
            await checks.check("new", "field")
        validator.go_on.set()
        await slow
        await checks.check("new", "field")
        checks.close()

    asyncio.run(scenario())
    assert validator.seen == ["known", "slow", "new"]


def test_what_is_remembered_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars, "_KEPT_NBYTES", 2000)
    validator = FakeValidator()

    async def scenario() -> None:
        checks = GrammarChecks([validator])
        for number in range(50):
            await checks.check(f"grammar {number}", "field")
        assert 1 <= len(checks._errors) < 10
        await checks.check("grammar 49", "field")
        checks.close()

    asyncio.run(scenario())
    assert len(validator.seen) == 50


def test_a_grammar_decides_where_the_answer_ends() -> None:
    sampling = SamplingParams(max_tokens=9, min_tokens=5, stop_token_ids=(7,))
    assert constrained(sampling, "", (2,), "field") is sampling
    found = constrained(sampling, "grammar", (2, 7), "field")
    assert (found.grammar, found.min_tokens) == ("grammar", 0)
    assert (found.eos_token_ids, found.stop_token_ids) == ((2, 7), (7,))
    with pytest.raises(InvalidRequest):
        constrained(sampling, "grammar", (), "field")
