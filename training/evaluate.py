"""Asks the packaged model held-out questions, through a running server, through transformers, or both.

Makes the pictures and conversations of a seed (`training.sample`), compares every answer with the exact one, and prints
a table per kind: share of exact answers either way and how many answers differ between the two.

    python -m training.evaluate --transformers mmserve/packaged/llava --limit 280
    python -m training.evaluate --base-url http://127.0.0.1:8000/v1 --transformers mmserve/packaged/llava
"""

from __future__ import annotations

import argparse
import io
import json
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from training.sample import KINDS, Sample, samples

LONGEST = 48  # tokens an answer may have
Row = dict[str, Any]


def ask_server(base_url: str, model: str | None, api_key: str, concurrency: int, asked: list[Sample]) -> list[str]:
    """Answers of an OpenAI-style server, several requests at a time."""
    from openai import OpenAI

    client = OpenAI(base_url=base_url, api_key=api_key, max_retries=2)
    name = model or client.models.list().data[0].id

    def ask(sample: Sample) -> str:
        messages: Any = sample.messages
        reply = client.chat.completions.create(model=name, messages=messages, max_tokens=LONGEST, temperature=0)
        return reply.choices[0].message.content or ""

    with ThreadPoolExecutor(concurrency) as pool:
        return list(progress(pool.map(ask, asked), len(asked), "server"))


def load_transformers(directory: Path, dtype: str, device: str) -> Callable[[Sample], str]:
    """A function that answers one sample with transformers' own LLaVA."""
    import torch
    from PIL import Image
    from transformers import AutoProcessor, LlavaForConditionalGeneration

    processor = AutoProcessor.from_pretrained(directory)
    model = LlavaForConditionalGeneration.from_pretrained(directory, dtype=getattr(torch, dtype)).to(device).eval()

    @torch.inference_mode()
    def ask(sample: Sample) -> str:
        prompt = processor.apply_chat_template(sample.messages, add_generation_prompt=True)
        pictures = [Image.open(io.BytesIO(data)).convert("RGB") for data in sample.images]
        # The template already writes <s>.
        inputs = processor(text=prompt, images=pictures or None, return_tensors="pt", add_special_tokens=False).to(
            device
        )
        if "pixel_values" in inputs:
            inputs["pixel_values"] = inputs["pixel_values"].to(model.dtype)
        out = model.generate(**inputs, max_new_tokens=LONGEST)
        text: str = processor.tokenizer.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        return text

    return ask


def progress(answers: Iterator[str], total: int, what: str) -> Iterator[str]:
    """Passes answers on and says every few seconds how many came."""
    last = time.monotonic()
    for done, answer in enumerate(answers, 1):
        yield answer
        if time.monotonic() - last > 10:
            last = time.monotonic()
            print(f"{what}: {done} of {total}", flush=True)


def half_width(share: float, count: int) -> float:
    """Half of the 95 % interval of a share (Wilson)."""
    z = 1.96
    return z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / (1 + z * z / count)


def table(rows: list[Row], ways: list[str]) -> str:
    """The markdown table: a line a kind, then all."""
    differing = len(ways) == 2
    head = ["kind", "questions", *ways, *(["differing answers"] if differing else [])]
    lines = [head, ["---"] * len(head)]
    for kind in (*KINDS, "all"):
        mine = [row for row in rows if kind in ("all", row["kind"])]
        if not mine:
            continue
        cells = [kind, str(len(mine))]
        for way in ways:
            share = sum(row[way] == row["expected"] for row in mine) / len(mine)
            cells.append(f"{100 * share:.1f} % ± {100 * half_width(share, len(mine)):.1f}")
        if differing:
            cells.append(str(sum(row[ways[0]] != row[ways[1]] for row in mine)))
        lines.append(cells)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def question_of(sample: Sample) -> str:
    """The last turn's text."""
    content = sample.messages[-1]["content"]
    return content if isinstance(content, str) else next(part["text"] for part in content if part["type"] == "text")


def collect(options: argparse.Namespace) -> tuple[list[Row], list[str]]:
    """Asks every way that was wished for."""
    asked = list(samples(options.limit or options.count, options.seed, options.kinds))
    rows: list[Row] = [{"kind": s.kind, "question": question_of(s), "expected": s.answer} for s in asked]
    found: dict[str, list[str]] = {}
    if options.base_url:
        found["server"] = ask_server(options.base_url, options.model, options.api_key, options.concurrency, asked)
    if options.transformers:
        ask = load_transformers(options.transformers, options.dtype, options.device)
        found["transformers"] = list(progress(map(ask, asked), len(asked), "transformers"))
    for way, answers in found.items():
        for row, answer in zip(rows, answers, strict=True):
            row[way] = answer.strip()
    return rows, list(found)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base-url", help="of a running server, for example http://127.0.0.1:8000/v1")
    parser.add_argument("--model", help="served name (default: the server's first)")
    parser.add_argument("--api-key", default="none")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--transformers", type=Path, metavar="DIR", help="checkpoint directory to ask directly")
    parser.add_argument("--dtype", default="float32", help="for transformers")
    parser.add_argument("--device", default="cpu", help="for transformers")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--limit", type=int, help="ask only this many")
    parser.add_argument("--kinds", nargs="+", choices=KINDS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write every question and answer here")
    options = parser.parse_args()
    if not (options.base_url or options.transformers):
        parser.error("nothing to ask: give --base-url, --transformers or both")
    rows, ways = collect(options)
    print(table(rows, ways))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
