"""Vision families behind the whole server: pictures of three sizes at once get the texts that transformers writes."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from PIL import Image

from benchmarks.load.server import serve
from tests.e2e.stack import LITTLE_MEMORY, Stack
from tests.fakes import vision_model
from tests.fakes.idefics3 import make_idefics3
from tests.fakes.media import png
from tests.fakes.qwen_vl import make_qwen_vl, processed_qwen_vl
from tests.fakes.vision_checkpoints import make_vision

pytestmark = pytest.mark.families

NUM_TOKENS = 12
CHUNKS = ("--max-num-seqs", "8", "--max-num-batched-tokens", "16")
"""Smaller than most images."""
PICTURES = [png(seed, *size) for seed, size in enumerate([(100, 37), (56, 56), (30, 90)])]
Question = tuple[str | int, ...]
"""Texts, and indexes of PICTURES."""
QUESTIONS: list[Question] = [
    (0, "what is it?"),
    (1, "and this?"),
    (2, "third"),
    ("Compare ", 0, " with ", 1, " and ", 2, "."),
    ("The last one first: ", 2, 0),
    ("no picture",),
]

Processed = Callable[[Path, list[dict[str, Any]], list[Image.Image]], dict[str, Any]]
"""(checkpoint, messages, images) -> what ``generate`` takes."""


def processed_idefics3(directory: Path, chat: list[dict[str, Any]], images: list[Image.Image]) -> dict[str, Any]:
    processor = transformers.AutoProcessor.from_pretrained(directory, use_fast=False)
    text = processor.apply_chat_template(chat, add_generation_prompt=True)
    return dict(processor(text=text, images=images or None, add_special_tokens=False, return_tensors="pt"))


FAMILIES: dict[str, tuple[Callable[[Path], Path], Processed]] = {
    "idefics3": (make_idefics3, processed_idefics3),
    "qwen3_vl": (partial(make_qwen_vl, family="qwen3_vl"), partial(processed_qwen_vl, family="qwen3_vl")),
    **{
        family: (partial(make_vision, family=family), partial(vision_model.processed, family=family))
        for family in ("internvl", "mistral3", "gemma3", "paddleocr_vl", "llava_next", "llava_onevision")
    },
}


def questions(family: str) -> list[Question]:
    """Those with as many pictures as a request of this family may have."""
    most = 1 if family == "llava_onevision" else len(PICTURES)
    return [question for question in QUESTIONS if sum(isinstance(part, int) for part in question) <= most]


def expected(directory: Path, asked: Sequence[Question], processed: Processed) -> list[str]:
    model = transformers.AutoModelForImageTextToText.from_pretrained(directory, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    found = []
    for question in asked:
        content = [{"type": "text", "text": part} if isinstance(part, str) else {"type": "image"} for part in question]
        images = [Image.open(io.BytesIO(PICTURES[part])) for part in question if isinstance(part, int)]
        inputs = processed(directory, [{"role": "user", "content": content}], images)
        out = model.generate(**inputs, do_sample=False, max_new_tokens=NUM_TOKENS, eos_token_id=-1)
        found.append(tokenizer.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
    return found


async def answers(stack: Stack, asked: Sequence[Question]) -> list[str]:
    client = stack.async_client()

    async def ask(question: Question) -> str:
        content = [
            {"type": "text", "text": part}
            if isinstance(part, str)
            else {"type": "image_url", "image_url": {"url": "data:image/png;base64," + _base64(PICTURES[part])}}
            for part in question
        ]
        reply = await client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": content}],
            temperature=0,
            max_tokens=NUM_TOKENS,
            extra_body={"ignore_eos": True},
        )
        return reply.choices[0].message.content or ""

    async with client:
        return await asyncio.gather(*map(ask, asked))


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.parametrize("family", FAMILIES)
def test_pictures_of_several_sizes_are_answered_as_by_transformers(tmp_path: Path, family: str) -> None:
    make, processed = FAMILIES[family]
    directory, asked = make(tmp_path), questions(family)
    options = ("--dtype", "float32", *LITTLE_MEMORY, "--served-model-name", "tiny", "--http-workers", "1")
    with serve(*options, *CHUNKS, model=str(directory)) as target:
        assert target.pid is not None
        stack = Stack(target.url, target.pid)
        cold = asyncio.run(answers(stack, asked))
        again = asyncio.run(answers(stack, asked))
        stack.check_all_released()
    assert cold == again == expected(directory, asked, processed)
