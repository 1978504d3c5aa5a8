"""Ways to ask a model: an OpenAI-style server by URL, or a checkpoint directory through transformers."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from training.exam.sets import Answer
from training.sample import Sample

LONGEST_TOKENS = 96  # of an answer; the longest right one has fewer than 40
Ask = Callable[[list[Sample]], Iterator[Answer]]


def server(base_url: str, model: str | None, api_key: str, concurrency: int) -> Ask:
    """Several requests at a time to a running server."""
    from openai import OpenAI

    client = OpenAI(base_url=base_url, api_key=api_key, max_retries=2)
    name = model or client.models.list().data[0].id

    def ask(sample: Sample) -> Answer:
        messages: Any = sample.messages
        reply = client.chat.completions.create(model=name, messages=messages, max_tokens=LONGEST_TOKENS, temperature=0)
        choice = reply.choices[0]
        return Answer(choice.message.content or "", choice.finish_reason != "length")

    def ask_all(asked: list[Sample]) -> Iterator[Answer]:
        with ThreadPoolExecutor(concurrency) as pool:
            yield from pool.map(ask, asked)

    return ask_all


def directory(path: Path, dtype: str, device: str) -> Ask:
    """transformers' own LLaVA, one question after the other."""
    import torch
    from PIL import Image
    from transformers import AutoProcessor, LlavaForConditionalGeneration

    processor = AutoProcessor.from_pretrained(path)
    model = LlavaForConditionalGeneration.from_pretrained(path, dtype=getattr(torch, dtype)).to(device).eval()
    end = processor.tokenizer.eos_token_id

    @torch.inference_mode()
    def ask(sample: Sample) -> Answer:
        prompt = processor.apply_chat_template(sample.messages, add_generation_prompt=True)
        pictures = [Image.open(io.BytesIO(data)).convert("RGB") for data in sample.images] or None
        # The template already writes <s>.
        inputs = processor(text=prompt, images=pictures, return_tensors="pt", add_special_tokens=False).to(device)
        if "pixel_values" in inputs:
            inputs["pixel_values"] = inputs["pixel_values"].to(model.dtype)
        said = model.generate(**inputs, max_new_tokens=LONGEST_TOKENS)[0, inputs["input_ids"].shape[1] :]
        return Answer(processor.tokenizer.decode(said, skip_special_tokens=True), bool((said == end).any()))

    return lambda asked: map(ask, asked)
