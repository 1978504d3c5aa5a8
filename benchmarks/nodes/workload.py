"""What clients ask: pictures drawn with a Zipf distribution, and streams whose text does not depend on who answers."""

from __future__ import annotations

import itertools
import random
from bisect import bisect
from typing import Any

from training.sample import samples

Body = dict[str, Any]
_PICTURES_SEED, _STREAMS_SEED = 660_401, 660_402
_QUESTIONS = ("What do you see?", "How many shapes are there?", "What is the background?", "Describe the picture.")


def zipf_bodies(count: int, num_pictures: int, exponent: float, seed: int) -> list[Body]:
    """``count`` requests with one of ``num_pictures`` each, the first of which is the most frequent."""
    pictures = [each.messages[0]["content"] for each in samples(num_pictures, _PICTURES_SEED, kinds=("colour",))]
    parts = [next(part for part in content if part["type"] == "image_url") for content in pictures]
    weights = list(itertools.accumulate(1 / rank**exponent for rank in range(1, num_pictures + 1)))
    draw = random.Random(seed)
    bodies = []
    for _ in range(count):
        picture = parts[bisect(weights, draw.random() * weights[-1])]
        question = {"type": "text", "text": draw.choice(_QUESTIONS)}
        message = {"role": "user", "content": [picture, question]}
        bodies.append({"model": "llava", "messages": [message], "max_tokens": 8, "temperature": 0, "stream": True})
    return bodies


def streams(count: int, tokens: int) -> list[Body]:
    """``count`` different ones, of ``tokens`` each, alternately greedy and seeded."""
    bodies = []
    for number, sample in enumerate(samples(count, _STREAMS_SEED, kinds=("colour", "word", "text"))):
        drawn = {"temperature": 0.9, "seed": number} if number % 2 else {"temperature": 0}
        bodies.append(
            {
                "model": "llava",
                "messages": sample.messages,
                "max_tokens": tokens,
                "ignore_eos": True,
                "stream": True,
                **drawn,
            }
        )
    return bodies
