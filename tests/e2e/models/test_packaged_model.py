"""The packaged checkpoint: transformers loads the same directory and gives the same answers as the server."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import transformers
from PIL import Image

import mmserve
from tests.e2e.stack import Stack, ask
from training.sample import Sample, samples

PACKAGED = Path(mmserve.__file__).parent / "packaged" / "llava"


def _images(sample: Sample) -> list[Image.Image]:
    parts = [part for message in sample.messages if isinstance(message["content"], list) for part in message["content"]]
    urls = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    return [Image.open(io.BytesIO(base64.b64decode(url.split(",", 1)[1]))) for url in urls]


@torch.inference_mode()
def _answers_of_transformers(questions: Sequence[Sample]) -> list[str]:
    processor = transformers.AutoProcessor.from_pretrained(PACKAGED)
    model = transformers.LlavaForConditionalGeneration.from_pretrained(PACKAGED, dtype=torch.float32)
    answers = []
    for sample in questions:
        text = processor.apply_chat_template(sample.messages, add_generation_prompt=True, tokenize=False)
        inputs = processor(text=text, images=_images(sample) or None, return_tensors="pt", add_special_tokens=False)
        output = model.generate(**inputs, do_sample=False, max_new_tokens=64)
        answers.append(processor.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
    return answers


@pytest.fixture(scope="module")
def questions() -> list[Sample]:
    """One question of each kind."""
    return list(samples(14, seed=909))


def test_answers_equal_those_of_transformers(default_stack: Stack, questions: list[Sample]) -> None:
    expected = _answers_of_transformers(questions)
    with default_stack.client() as client:
        assert [ask(client, sample.messages) for sample in questions] == expected


def test_the_packaged_checkpoint_is_small_and_complete() -> None:
    assert sum(path.stat().st_size for path in PACKAGED.iterdir()) <= 24 * 1000 * 1000
    for name in ("config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors", "README.md"):
        assert (PACKAGED / name).is_file(), name
