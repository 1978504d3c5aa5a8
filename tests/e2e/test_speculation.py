"""The whole server with --speculative or --speculative-model: the same answers, and in fewer steps."""

from __future__ import annotations

import json
from collections.abc import Sequence

import openai
import pytest

from mmserve.cli import main as cli
from tests.e2e.stack import LITTLE_MEMORY, ask, ask_streamed, kv_tokens, running

LIST = "\n".join(f'{{"name": "item {number}", "colour": "red", "price": {number}}}' for number in range(12))
MESSAGES = [{"role": "user", "content": f"Repeat these lines, word for word:\n{LIST}"}]


def answers(client: openai.OpenAI) -> list[object]:
    """The first prompt is so short that a draft model computes it at once."""
    short = client.completions.create(model="llava", prompt="The", temperature=0.5, seed=3, max_tokens=40)
    several = client.chat.completions.create(
        model="llava", messages=MESSAGES, temperature=0.5, seed=7, n=3, max_tokens=60, frequency_penalty=0.1
    )
    scored = client.chat.completions.create(
        model="llava", messages=MESSAGES, temperature=0, max_tokens=60, logprobs=True, top_logprobs=2, stop=["price"]
    )
    schema = {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}}
    return [
        short.choices[0],
        short.usage,
        ask(client, MESSAGES, max_tokens=150),
        ask_streamed(client, MESSAGES, max_tokens=150),
        [choice.message.content for choice in several.choices],
        several.usage,
        scored.choices[0],
        scored.usage,
        ask(
            client,
            MESSAGES,
            max_tokens=60,
            response_format={"type": "json_schema", "json_schema": {"name": "list", "schema": schema}},
        ),
    ]


def _planned_kv_tokens(options: Sequence[str], capsys: pytest.CaptureFixture[str]) -> int:
    """Of ``mmserve plan`` with the options of ``running``, as far as these change memory."""
    known = options if options[0] == "--speculative-model" else ()
    assert cli.main(["plan", "--model", "llava", "--dtype", "float32", *LITTLE_MEMORY, *known, "--json"]) == 0
    found: int = json.loads(capsys.readouterr().out)["kv_tokens"]
    return found


def test_answers_are_the_same_in_fewer_steps(capsys: pytest.CaptureFixture[str]) -> None:
    """The model as its own draft model is not faster, but the server does not know at first, and tries it."""
    with running() as server, server.client() as client:
        expected = answers(client)
        num_steps = server.metric("step_seconds_count")
        assert server.metric("draft_tokens_total") == 0
    for option in (("--speculative", "ngram"), ("--speculative-model", "llava")):
        with running(*option) as server, server.client() as client:
            assert answers(client) == expected
            assert _planned_kv_tokens(option, capsys) == pytest.approx(kv_tokens(server), rel=0.05)
            accepted = server.metric("accepted_draft_tokens_total")
            assert 0 < accepted <= server.metric("draft_tokens_total")
            assert server.metric("step_seconds_count") < num_steps or "--speculative-model" in option
