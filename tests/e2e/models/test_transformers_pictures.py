"""A vision-language model without a family here, behind the whole server: answers are those of transformers."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from benchmarks.load.server import serve
from tests.e2e.stack import LITTLE_MEMORY, Stack
from tests.fakes.models.checkpoints import make_vipllava
from tests.fakes.models.idefics3 import make_idefics3
from tests.fakes.models.vision_checkpoints import make_llava_next_with_processor, make_paddleocr_with_processor

pytestmark = pytest.mark.families

NUM_TOKENS = 10


def picture(width: int, height: int) -> Image.Image:
    values = np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


def expected(directory: Path, pictures: list[Image.Image]) -> tuple[str, int]:
    """The answer of transformers, and the tokens of the prompt."""
    model = transformers.AutoModelForImageTextToText.from_pretrained(directory, dtype=torch.float32)
    processor = transformers.AutoProcessor.from_pretrained(directory)
    chat = [{"role": "user", "content": [{"type": "image"} for _ in pictures] + [{"type": "text", "text": "What?"}]}]
    text = processor.tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    inputs = processor(text=text, images=pictures, return_tensors="pt", add_special_tokens=False)
    out = model.generate(**inputs, do_sample=False, max_new_tokens=NUM_TOKENS)
    length = inputs["input_ids"].shape[1]
    return str(processor.tokenizer.decode(out[0, length:], skip_special_tokens=True)), length


def content(pictures: list[Image.Image]) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for each in pictures:
        buffer = io.BytesIO()
        each.save(buffer, "PNG")
        url = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
        parts.append({"type": "image_url", "image_url": {"url": url}})
    return [*parts, {"type": "text", "text": "What?"}]


@pytest.mark.parametrize(
    "make",
    [make_vipllava, make_llava_next_with_processor, make_paddleocr_with_processor, make_idefics3],
    ids=["alike", "by size", "three axes", "other text"],
)
def test_answers_about_pictures(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    """``alike``: every picture has the same number of tokens. Two HTTP workers ask for those that have not."""
    directory = make(tmp_path)
    questions = [[picture(64, 31)], [picture(20, 90), picture(64, 31), picture(70, 70)]]
    options = ("--dtype", "float32", *LITTLE_MEMORY, "--served-model-name", "tiny", "--http-workers", "2")
    options = (*options, "--model-impl", "transformers")
    with serve(*options, model=str(directory)) as target:
        assert target.pid is not None
        stack = Stack(target.url, target.pid)
        found, counted = list[str | None](), list[int]()
        for pictures in questions:
            reply = stack.client().chat.completions.create(
                model="tiny",
                messages=[{"role": "user", "content": content(pictures)}],  # type: ignore[list-item, misc]
                temperature=0,
                max_tokens=NUM_TOKENS,
            )
            found.append(reply.choices[0].message.content)
            counted.append(reply.usage.prompt_tokens)  # type: ignore[union-attr]
            body = {"model": "tiny", "messages": [{"role": "user", "content": content(pictures)}]}
            assert stack.post("/tokenize", body)[1]["count"] == counted[-1]
        stack.check_all_released()
    wanted = [expected(directory, pictures) for pictures in questions]
    assert found == [text for text, _ in wanted]
    assert counted == [count for _, count in wanted]
