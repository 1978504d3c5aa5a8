"""Each text family behind the whole server: 16 clients get the texts that transformers writes for the same chat.

Granite has no family here: transformers' modules compute it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from benchmarks.load.server import serve
from tests.e2e.commands.plans import check_plan
from tests.e2e.models.picture_chats import GREEDY, THEIR_GREEDY, ask_streamed
from tests.e2e.stack import LITTLE_MEMORY, Stack
from tests.fakes.models.checkpoints import EOS, PAD, TEXT_FAMILIES, make_text

pytestmark = pytest.mark.families

FAMILIES = ("llama", *TEXT_FAMILIES, "granite")
CLIENTS, NUM_TOKENS = 16, 12
STOPS = list(range(200, 216))
"""EOS ids that only generation_config.json names. Each is the token of a byte, so random models write some."""
QUESTIONS = [f"question {number}: {'why ' * (3 * number)}?" for number in range(CLIENTS)]
SURE: tuple[dict[str, float], ...] = ({"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-5})
"""Of generation_config.json: with each of them the likeliest token alone is drawn, so texts can be compared."""
RESENT = ("mistral", "gemma3_text", "qwen3_moe")
"""Families of whose servers a rank is killed: with windows, with two kinds of layers, and with experts."""
LONG, THEIR_LONG = GREEDY | {"max_tokens": 64}, THEIR_GREEDY | {"max_new_tokens": 64}


def expected(directory: Path, asked: Sequence[str], settings: dict[str, Any]) -> list[tuple[str, str]]:
    """(text, finish reason) of questions. Settings that are left out are those of generation_config.json."""
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    found = []
    for question in asked:
        chat = [{"role": "user", "content": question}]
        inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        out = model.generate(**inputs, **settings, pad_token_id=PAD)
        ids = out[0, inputs["input_ids"].shape[1] :].tolist()
        stopped = "eos_token_id" not in settings and ids[-1] in (EOS, *STOPS)
        text = tokenizer.decode(ids[:-1] if stopped else ids, skip_special_tokens=True)
        found.append((text, "stop" if stopped else "length"))
    return found


async def answers(stack: Stack) -> list[tuple[str, str]]:
    """(text, finish reason) of every question, all asked at once. Requests leave out how tokens are sampled."""
    client = stack.async_client()

    async def ask(question: str) -> tuple[str, str]:
        reply = await client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": question}], max_tokens=NUM_TOKENS
        )
        return reply.choices[0].message.content or "", reply.choices[0].finish_reason

    async with client:
        return await asyncio.gather(*map(ask, QUESTIONS))


def check_resent(stack: Stack, directory: Path) -> None:
    """Streams go on with the texts of transformers when a rank is killed, beyond the window if there is one."""
    asked = QUESTIONS[:4]
    (rank,) = stack.processes("mmserve: model_backend")
    texts = ask_streamed(stack, [(question,) for question in asked], LONG, rank.kill)
    assert texts == [text for text, _ in expected(directory, asked, THEIR_LONG)]
    assert stack.metric("requests_resent_total") > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_those_of_transformers(tmp_path: Path, family: str) -> None:
    directory = make_text(tmp_path, family, hidden_size=128)
    sure = SURE[FAMILIES.index(family) % len(SURE)]
    generation = {"eos_token_id": [EOS, *STOPS], "bos_token_id": 1, "do_sample": True, "repetition_penalty": 1.3} | sure
    (directory / "generation_config.json").write_text(json.dumps(generation))
    planned = ("--dtype", "float32", *LITTLE_MEMORY, "--http-workers", "1")
    with serve(*planned, "--served-model-name", "tiny", model=str(directory)) as target:
        assert target.pid is not None
        stack = Stack(target.url, target.pid)
        found = asyncio.run(answers(stack))
        check_plan(stack, str(directory), *planned)
        if family in RESENT:
            check_resent(stack, directory)
        stack.check_all_released()
    assert found == expected(directory, QUESTIONS, {"max_new_tokens": NUM_TOKENS})
    assert {reason for _, reason in found} == {"stop", "length"}
