"""Each text family behind the whole server: 16 clients get the texts that transformers writes for the same chat.

Granite has no family here: transformers' modules compute it.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import torch
import transformers

from benchmarks.load.server import serve
from tests.e2e.plans import check_plan
from tests.e2e.stack import LITTLE_MEMORY, Stack
from tests.fakes.checkpoints import EOS, PAD, TEXT_FAMILIES, make_text

pytestmark = pytest.mark.families

CLIENTS, NUM_TOKENS = 16, 12
STOPS = list(range(200, 216))
"""EOS ids that only generation_config.json names. Each is the token of a byte, so random models write some."""
QUESTIONS = [f"question {number}: {'why ' * (3 * number)}?" for number in range(CLIENTS)]


def expected(directory: Path) -> list[tuple[str, str]]:
    """(text, finish reason) of every question."""
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    found = []
    for question in QUESTIONS:
        chat = [{"role": "user", "content": question}]
        inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        out = model.generate(
            **inputs, do_sample=False, max_new_tokens=NUM_TOKENS, eos_token_id=[EOS, *STOPS], pad_token_id=PAD
        )
        ids = out[0, inputs["input_ids"].shape[1] :].tolist()
        stopped = ids[-1] in (EOS, *STOPS)
        text = tokenizer.decode(ids[:-1] if stopped else ids, skip_special_tokens=True)
        found.append((text, "stop" if stopped else "length"))
    return found


async def answers(stack: Stack) -> list[tuple[str, str]]:
    """(text, finish reason) of every question, all asked at once."""
    client = stack.async_client()

    async def ask(question: str) -> tuple[str, str]:
        reply = await client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": question}], temperature=0, max_tokens=NUM_TOKENS
        )
        return reply.choices[0].message.content or "", reply.choices[0].finish_reason

    async with client:
        return await asyncio.gather(*map(ask, QUESTIONS))


@pytest.mark.parametrize("family", ["llama", *TEXT_FAMILIES, "granite"])
def test_answers_are_those_of_transformers(tmp_path: Path, family: str) -> None:
    directory = make_text(tmp_path, family, hidden_size=128)
    generation = {"eos_token_id": [EOS, *STOPS], "bos_token_id": 1}
    (directory / "generation_config.json").write_text(json.dumps(generation))
    planned = ("--dtype", "float32", *LITTLE_MEMORY, "--http-workers", "1")
    with serve(*planned, "--served-model-name", "tiny", model=str(directory)) as target:
        assert target.pid is not None
        stack = Stack(target.url, target.pid)
        found = asyncio.run(answers(stack))
        check_plan(stack, str(directory), *planned)
        stack.check_all_released()
    assert found == expected(directory)
    assert {reason for _, reason in found} == {"stop", "length"}
