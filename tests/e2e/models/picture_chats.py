"""Chats about pictures of several sizes: the answers of a whole server, and those of transformers' ``generate``."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import openai
import torch
import transformers
from PIL import Image

from tests.e2e.stack import Stack
from tests.fakes.models.picture_families import Processed
from tests.fakes.pictures.media import png

NUM_TOKENS = 16
CHUNKS = ("--max-num-seqs", "8", "--max-num-batched-tokens", "20")
"""Smaller than most images."""
PICTURES = [png(seed, *size) for seed, size in enumerate([(100, 37), (56, 56), (30, 90)])]
LARGE = len(PICTURES)
"""Index of a picture that some tests ask about."""
PICTURES.append(png(LARGE, 640, 480))
Question = tuple[str | int, ...]
"""Texts, and indexes of PICTURES."""
QUESTIONS: list[Question] = [
    (0, "what is it?"),
    (1, "and this?"),
    (2, "third"),
    ("Compare ", 0, " with ", 1, " and ", 2, "."),
    ("The last one first: ", 2, 0),
    ("no picture",),
    (2, 1, 0),
    ("What is ", 1),
    ("Twice the same: ", 0, " and ", 0, "?"),
    (0, 1, 2, "How many are there, and which of them is the largest?"),
    ("no picture either, but a longer question: why? " * 2,),
    (1, "and this one"),
    ("Left ", 2, ", right ", 0),
    (0, "what is it?"),
    (2, 2, 1),
    ("?", 1, "?"),
]
"""Those of 16 clients at once."""
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": NUM_TOKENS, "ignore_eos": True, "repetition_penalty": 1.0}
"""Fields of a request."""
THEIR_GREEDY = {"do_sample": False, "max_new_tokens": NUM_TOKENS, "eos_token_id": -1, "repetition_penalty": 1.0}
"""The same for ``generate``."""


class Answer(NamedTuple):
    text: str
    finish_reason: str


def expected(
    directory: Path, asked: Sequence[Question], processed: Processed, settings: dict[str, Any] = THEIR_GREEDY
) -> list[Answer]:
    """Of transformers. Settings that are left out are those of generation_config.json."""
    model, tokenizer = _loaded(directory)
    stops = settings.get("eos_token_id", model.generation_config.eos_token_id)
    found = []
    for question in asked:
        inputs = inputs_of(directory, question, processed)
        ids = model.generate(**inputs, **settings)[0, inputs["input_ids"].shape[1] :].tolist()
        stopped = ids[-1] in (stops if isinstance(stops, list) else [stops])
        text = tokenizer.decode(ids[:-1] if stopped else ids, skip_special_tokens=True)
        found.append(Answer(text, "stop" if stopped else "length"))
    return found


def inputs_of(directory: Path, question: Question, processed: Processed) -> dict[str, Any]:
    """What ``generate`` takes for a question."""
    content = [{"type": "text", "text": part} if isinstance(part, str) else {"type": "image"} for part in question]
    images = [Image.open(io.BytesIO(PICTURES[part])) for part in question if isinstance(part, int)]
    return processed(directory, [{"role": "user", "content": content}], images)


@lru_cache(maxsize=1)
def _loaded(directory: Path) -> tuple[Any, Any]:
    """transformers' model and tokenizer. The last ones are kept, as the tests of a family follow each other."""
    model = transformers.AutoModelForImageTextToText.from_pretrained(directory, dtype=torch.float32)
    return model, transformers.AutoTokenizer.from_pretrained(directory)


def ask_all(stack: Stack, asked: Sequence[Question], fields: dict[str, Any] = GREEDY) -> list[Answer]:
    """The answers to all questions, asked at once."""

    async def scenario() -> list[Answer]:
        async with stack.async_client() as client:
            return await asyncio.gather(*(_answer(client, question, fields) for question in asked))

    return asyncio.run(scenario())


async def _answer(client: openai.AsyncOpenAI, question: Question, fields: dict[str, Any]) -> Answer:
    reply = await client.chat.completions.create(**request(question, fields))
    return Answer(reply.choices[0].message.content or "", reply.choices[0].finish_reason)


def ask_streamed(
    stack: Stack, asked: Sequence[Question], fields: dict[str, Any], on_first_text: Callable[[], object]
) -> list[str]:
    """The texts of the answers to all questions, asked at once. ``on_first_text`` is called when one of them begins."""

    async def streamed(client: openai.AsyncOpenAI, question: Question) -> str:
        nonlocal is_first
        text = ""
        async for event in await client.chat.completions.create(stream=True, **request(question, fields)):
            text += event.choices[0].delta.content or ""
            if text and is_first:
                is_first = False
                on_first_text()
        return text

    async def scenario() -> list[str]:
        async with stack.async_client() as client:
            return await asyncio.gather(*(streamed(client, question) for question in asked))

    is_first = True
    return asyncio.run(scenario())


def request(question: Question, fields: dict[str, Any] = GREEDY) -> dict[str, Any]:
    """Arguments of the OpenAI client. ``fields``: further ones of the JSON body."""
    content = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": "data:image/png;base64," + in_base64(PICTURES[part])}}
        for part in question
    ]
    messages = [{"role": "user", "content": content}]
    return {"model": "tiny", "messages": messages, "extra_body": fields}


def in_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def write_generation_config(directory: Path, settings: dict[str, Any]) -> None:
    """With the tokenizer's special tokens."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    tokens = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": [tokenizer.eos_token_id]}
    tokens["eos_token_id"] += settings.get("eos_token_id", [])
    (directory / "generation_config.json").write_text(json.dumps(settings | tokens))
