"""The whole server with --speculative or --speculative-model: the same answers, and in fewer steps."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import openai
import pytest
from safetensors.torch import load_file, save_file

from benchmarks.first_layers import write
from mmserve.cli import main as cli
from tests.e2e.stack import LITTLE_MEMORY, Stack, ask, ask_streamed, kv_tokens, running
from tests.fakes.models.checkpoints import make_llama

LIST = "\n".join(f'{{"name": "item {number}", "colour": "red", "price": {number}}}' for number in range(12))
_ROUNDS = 5
MESSAGES = [{"role": "user", "content": f"Repeat these lines, word for word:\n{LIST}"}]


def answers(client: openai.OpenAI) -> list[object]:
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
    """The model as its own draft model is as slow as it, which the server knows from its start: no token is drafted."""
    with running() as server, server.client() as client:
        expected = answers(client)
        num_steps = server.metric("step_seconds_count")
        assert server.metric("draft_tokens_total") == 0
    for option in (("--speculative", "ngram"), ("--speculative-model", "llava")):
        with running(*option) as server, server.client() as client:
            assert answers(client) == expected
            assert _planned_kv_tokens(option, capsys) == pytest.approx(kv_tokens(server), rel=0.05)
            if "ngram" in option:
                assert 0 < server.metric("accepted_draft_tokens_total") <= server.metric("draft_tokens_total")
                assert server.metric("step_seconds_count") < num_steps


@pytest.fixture
def deep_and_first_layer(tmp_path: Path) -> tuple[Path, Path]:
    """A model of which all layers but the first add nothing, and that layer as a draft model that is always right."""
    deep = make_llama(
        tmp_path / "deep", hidden_size=256, intermediate_size=2048, num_hidden_layers=32, max_position_embeddings=1024
    )
    file = deep / "model.safetensors"
    tensors = load_file(file)
    for name, tensor in tensors.items():
        if re.search(r"\.layers\.[1-9]\d*\..*(o_proj|down_proj)", name):
            tensor.zero_()
    save_file(tensors, file, {"format": "pt"})
    write(deep, tmp_path / "first", 1)
    return deep, tmp_path / "first"


def test_a_draft_model_that_is_right_and_fast_saves_steps(deep_and_first_layer: tuple[Path, Path]) -> None:
    """In one of a few rounds: the server does not draft while steps beside other tests say that it does not pay."""
    deep, first = deep_and_first_layer
    model = ("--model", str(deep), "--served-model-name", "tiny")
    with running(*model) as server:
        plain = _four_answers(server)
    with running(*model, "--speculative-model", str(first)) as server:
        for _ in range(_ROUNDS):
            drafted = _four_answers(server)
            assert drafted.texts == plain.texts
            accepted = server.metric("accepted_draft_tokens_total")
            if drafted.steps < plain.steps - 10 and accepted > 20:
                break
        assert drafted.steps < plain.steps - 10
        assert accepted > 20


class _Answers(NamedTuple):
    texts: list[str]
    steps: float


def _four_answers(server: Stack) -> _Answers:
    before = server.metric("step_seconds_count")
    with server.client() as client:
        texts = [
            client.completions.create(
                model="tiny",
                prompt="ab",
                temperature=temperature,
                seed=5,
                max_tokens=60,
                extra_body={"ignore_eos": True},
            )
            .choices[0]
            .text
            for temperature in (0.0, 0.7, 0.0, 0.7)
        ]
    return _Answers(texts, server.metric("step_seconds_count") - before)
