"""The requests of a drill: text and pictures, greedy and seeded, one choice and several, with log-probabilities."""

from __future__ import annotations

import io
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pybase64
from PIL import Image, ImageDraw

_COLOURS = ("red", "green", "blue", "yellow", "purple", "orange", "white", "black")
_PROMPTS = ("What is in this picture?", "Which colours do you see?", "How many shapes are there?", "Describe it.")
_TEXTS = ("What can you do?", "Name a colour.", "Tell me about shapes.", "Count to twenty.")
_STYLES: tuple[Mapping[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 0.9, "seed": 7},
    {"temperature": 0, "logprobs": True, "top_logprobs": 2},
    {"temperature": 0.8, "top_p": 0.9, "seed": 11, "n": 2},
)
"""Taken in turn. Each gives the same answer again, so an answer can be compared with that of an undisturbed run."""


@dataclass(frozen=True)
class Question:
    """One chat completion. ``body``: its JSON without ``model`` and ``stream``.

    ``expected``: the right answer if it is known beforehand. Then each choice must equal it as well.
    """

    body: Mapping[str, Any]
    expected: str | None = None


def default_questions(count: int, *, pictures: bool, max_tokens: int = 96, seed: int = 1) -> list[Question]:
    """``count`` questions, three of four with a picture if the model takes pictures. The same seed gives the same."""
    rng = random.Random(seed)
    return [
        Question(
            {
                "messages": [{"role": "user", "content": _content(rng, number, pictures and number % 4 != 3)}],
                "max_tokens": max_tokens,
                "ignore_eos": True,  # long streams, so that each fault meets many of them half-way
                "skip_special_tokens": False,  # every token shows, so a pause is the server's and not the model's
                **_STYLES[number % len(_STYLES)],
            }
        )
        for number in range(count)
    ]


def with_known_answers(samples: Sequence[tuple[list[dict[str, Any]], str]]) -> list[Question]:
    """Greedy questions from pairs of messages and the right answer."""
    return [Question({"messages": messages, "temperature": 0}, answer) for messages, answer in samples]


def _content(rng: random.Random, number: int, picture: bool) -> list[dict[str, Any]]:
    if not picture:
        return [{"type": "text", "text": f"{rng.choice(_TEXTS)} ({number})"}]
    url = f"data:image/png;base64,{pybase64.b64encode_as_string(_picture(rng))}"
    return [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": rng.choice(_PROMPTS)},
    ]


def _picture(rng: random.Random) -> bytes:
    """A PNG with a few coloured shapes."""
    width, height = rng.randint(120, 360), rng.randint(120, 360)
    image = Image.new("RGB", (width, height), rng.choice(_COLOURS))
    draw = ImageDraw.Draw(image)
    for _ in range(rng.randint(1, 5)):
        left, top = rng.randint(0, width - 50), rng.randint(0, height - 50)
        box = (left, top, left + rng.randint(20, 50), top + rng.randint(20, 50))
        rng.choice((draw.rectangle, draw.ellipse))(box, fill=rng.choice(_COLOURS))
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()
